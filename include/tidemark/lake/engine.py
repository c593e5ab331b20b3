"""Defines the interface of an engine: open a Delta table at one version, and run statements over such tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.lake.delta_schemas import LakeColumn
from tidemark.lake.dialects import Dialect


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """One version of a Delta table; `handle` is the engine's own."""

    path: str
    version: int
    columns: tuple[LakeColumn, ...]
    handle: Any


class Engine(Protocol):
    """Paths are full names. Names of tables in a statement are plain words, made up for it alone."""

    dialect: Dialect

    def open(self, path: str) -> OpenedTable | None:
        """The newest version; None if there is no Delta table."""

    def transaction(self, table: OpenedTable, application: str) -> int | None:
        """The `txnVersion` of that `txnAppId`, None if the table has none."""

    def rows(self, table: OpenedTable) -> Any:
        """All rows of the version, as the engine gives rows."""

    def frame(self, statement: str, tables: Mapping[str, OpenedTable]) -> Any:
        """What a statement gives that calls the tables by these names, as the engine gives rows."""

    def listed(self, statement: str, tables: Mapping[str, OpenedTable]) -> list[dict[str, Any]]:
        """The same, of a statement that gives few rows."""
