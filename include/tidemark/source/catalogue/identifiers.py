"""Quotes names in SQL statements for people, only where PostgreSQL requires quotes, as `quote_ident` does.

Statements that run are composed with psycopg's `sql.Identifier`, which always quotes. This module is for statements
that a person reads and copies. Source: PostgreSQL documentation, 4.1.1 "Identifiers and Key Words", Appendix C.
"""

from __future__ import annotations

import re
from typing import Final

from psycopg import sql

from tidemark.names import TableName

# Keywords that need quotes as a name: categories R and T of pg_get_keywords().
KEYWORDS: Final = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate
    collation column concurrently constraint create cross current_catalog current_date current_role
    current_schema current_time current_timestamp current_user default deferrable desc distinct do else end
    except false fetch for foreign freeze from full grant group having ilike in initially inner intersect into
    is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null offset on
    only or order outer overlaps placing primary references returning right select session_user similar some
    symmetric system_user table tablesample then to trailing true union unique user using variadic verbose when
    where window with
    """.split()  # noqa: SIM905
)
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')


def readable(statement: sql.Composed) -> str:
    """The statement without the quotes that it does not need. It must not have a literal with a double quote."""
    return _QUOTED.sub(lambda match: _bare(match[1].replace('""', '"'), match[0]), statement.as_string(None))


def quoted(name: str) -> str:
    return readable(sql.Composed([sql.Identifier(name)]))


def qualified(table: TableName) -> str:
    return readable(sql.Composed([sql.Identifier(table.schema, table.name)]))


def _bare(name: str, otherwise: str) -> str:
    return name if _PLAIN.fullmatch(name) and name not in KEYWORDS else otherwise
