"""Builds the distributions that a release consists of."""
