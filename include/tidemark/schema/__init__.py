"""Defines table schemas: PostgreSQL and Delta types, versions, evolution, and the states of a table. Pure."""
