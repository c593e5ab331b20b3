"""Selects the captured table of a relation in the stream, and its rule in the names of its columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import psycopg

from tidemark.capture.definitions.column_guarding import ColumnGuards
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig, TableRule
from tidemark.ledger.captured import table_errors
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable


class CapturedRelations:
    """The relations of one drain. `passed_over` are the tables that their errors keep out of the capture."""

    def __init__(
        self,
        config: PipelineConfig,
        source: psycopg.Connection[Any],
        ledger: Ledger,
        table_ids: TableIds,
        guards: ColumnGuards,
        rows: Collection[TableRow],
    ) -> None:
        self._config = config
        self._source = source
        self._table_ids = table_ids
        self._guards = guards
        self._captured = {row.table for row in rows if row.life.is_captured}
        self._partitions: dict[int, bool] = {}
        self.passed_over = table_errors.passed_over(ledger)

    def table_of(self, oid: int, called: TableName) -> TableName | None:
        """The captured table of a relation with this name in the stream; None if its errors keep it out of the capture.
        Also None for a partition that is published by itself: no backfill would read its older rows."""
        if self.captured_before(oid) is None and self._is_partition(oid):
            return None
        table = self._table_ids.id_of(oid, called)
        return None if str(table) in self.passed_over else table

    def captured_before(self, oid: int) -> TableName | None:
        """The table of a relation if it was captured when the drain began."""
        table = self._table_ids.recorded_id(oid)
        return table if str(table) in self._captured else None

    def _is_partition(self, oid: int) -> bool:
        """Whether the relation is a partition. The list is read once and again only for a relation that is not in
        it."""
        if not self._partitions:
            self._partitions = dict.fromkeys(catalog.partitions(self._source), True)
        if oid not in self._partitions:
            self._partitions[oid] = oid in catalog.partitions(self._source, oid)
        return self._partitions[oid]

    def rule_of(self, called: TableName) -> TableRule | None:
        """The rule of the table with this name at the source; None if the file does not name it."""
        return self._config.rule(called)

    def placed_rule(self, relation: RelationMessage, rule: TableRule) -> TableRule:
        """The rule in the column names of a message. Raises ChangesWithheld or ShapeUnsettled."""
        return self._guards.place(relation, rule)

    def with_rule(self, captured: CapturedTable, rule: TableRule) -> CapturedTable:
        """The table with this rule in the column names that the catalogue has now."""
        return self._guards.applied(replace(captured, rule=rule))
