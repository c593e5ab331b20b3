"""PostgreSQL types -> Delta types (DDL) -> Arrow types. The table this follows is in docs/formats.md, "Types".

Pure: the catalogue's rows come in as `PgType`s. A type that is not known becomes `string`, PostgreSQL's own text, never a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Kind = Literal["b", "e", "d", "c", "r", "m", "p"]


@dataclass(frozen=True, slots=True)
class PgType:
    """One row of pg_type: `kind` is typtype; `base_oid` and `base_typmod` of a domain, `element_oid` of a true array, else 0."""

    oid: int
    name: str
    schema: str
    kind: Kind
    base_oid: int = 0
    base_typmod: int = -1
    element_oid: int = 0
    delimiter: str = ","


def target_type(type_oid: int, typmod: int, types: Mapping[int, PgType], override: str | None = None) -> str:
    """The Delta type as DDL. `override` is "text" or "decimal(p,s)"; ValueError where the column's type does not allow it."""
    raise NotImplementedError


def type_name(type_oid: int, typmod: int, types: Mapping[int, PgType]) -> str:
    """PostgreSQL's name with modifiers, for example "numeric(10,2)" or "character varying(20)[]"."""
    raise NotImplementedError


def arrow_type(target: str) -> pa.DataType:
    """Delta DDL -> the Arrow type of staged files. ValueError for a type that Tidemark does not write."""
    raise NotImplementedError
