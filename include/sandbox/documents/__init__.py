"""Writes what of the documents is made of the code: tables of options and of types, drawings of state machines."""
