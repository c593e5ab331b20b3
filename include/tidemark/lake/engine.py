"""Defines the interface of an engine: open a Delta table at one version, and run statements over such tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.lake.delta_schemas import LakeColumn
from tidemark.lake.dialects import Dialect


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """One version of a Delta table; `handle` belongs to the engine."""

    path: str
    version: int
    columns: tuple[LakeColumn, ...]
    handle: Any


class Engine(Protocol):
    """Reads Delta tables and runs statements over them. Paths are full names. Tables have plain names in a
    statement, which exist for that statement alone."""

    dialect: Dialect

    def open(self, path: str) -> OpenedTable | None:
        """Open the newest version; None if there is no Delta table."""

    def transaction(self, table: OpenedTable, application: str) -> int | None:
        """The `txnVersion` of that `txnAppId`, None if the table has none."""

    def rows(self, table: OpenedTable) -> Any:
        """All rows of the version, in the engine's own form."""

    def frame(self, statement: str, tables: Mapping[str, OpenedTable]) -> Any:
        """The result of a statement that uses the tables under these names, in the engine's own form."""

    def listed(self, statement: str, tables: Mapping[str, OpenedTable]) -> list[dict[str, Any]]:
        """As `frame`, as a list, for statements with few rows."""
