"""Describes how this machine calls spark-submit: master, defaults and jars; orders plans from one application."""
