"""Roles that tests log in with: every server of theirs asks for a password."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict


def login(role: str, conninfo: str, *options: str) -> str:
    """The statement that makes a role which `conninfo` leads to once its user is replaced by the role's name."""
    return f"CREATE ROLE {role} LOGIN {' '.join(options)} PASSWORD '{conninfo_to_dict(conninfo)['password']}'"
