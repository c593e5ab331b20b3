"""Defines the tasks of the DAGs; each calls one function of the library."""
