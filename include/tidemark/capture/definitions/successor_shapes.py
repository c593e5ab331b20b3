"""Begins a new table for a relation whose new shape its Delta tables cannot take, from one position on (R11).

    the stream has the new shape   from that RELATION message on, changes belong to the new table; the batch that holds
                                   the first of them records it
    only the catalogue has it      nobody wrote after the ALTER: from the heartbeat of the run that read it

The new table joins like any table with rows: a backfill brings them, and a snapshot older than the join horizon does
not count. The horizon is taken after the batch is registered. By then every transaction has ended whose changes went to
the old table, so every chunk sees them. A change that a chunk does not see is staged for the new table. So the position
between the two needs no proof: any position is right, and this one leaves the old table whole.

Only the id is written before the batch is registered (`ledger.captured.successors.reserve`). A drain that dies leaves
the relation as it was. All this happens only with `evolve: follow`. Otherwise the table is parked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tidemark.capture.definitions.drain_versions import DrainVersions
from tidemark.capture.definitions.marks import needs_backfill
from tidemark.capture.definitions.table_definition import Catalog, catalogue_shape
from tidemark.capture.definitions.version_differences import shape_differences
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.errors import SchemaNotFollowed, SchemaVersionsDiffer
from tidemark.formats.manifest import TableMark
from tidemark.ledger.captured import backfill_marks
from tidemark.ledger.captured.successors import ANOTHER_SHAPE
from tidemark.ledger.captured.tables import TableRow
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.delta_types import PgType
from tidemark.schema.evolution import reshaped
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue.catalog import CapturedTable

log = logging.getLogger(__name__)

# The errors of a table that is parked for its shape.
FITS_NOT: Final = (SchemaNotFollowed.__name__, SchemaVersionsDiffer.__name__)


@dataclass(frozen=True, slots=True)
class ChangedShape:
    """A table whose shape in the catalogue does not fit its Delta tables, with the reason; or a table that is
    replayed."""

    captured: CapturedTable
    shape: TableSchema
    reason: str
    kind: str = ANOTHER_SHAPE


@dataclass(frozen=True, slots=True)
class BegunSuccessor:
    """A table that replaces `before` from a batch on. `shape` is set if no change has that shape."""

    table: TableName
    before: TableName
    reason: str
    shape: TableSchema | None
    kind: str = ANOTHER_SHAPE


class SuccessorShapes:
    """The tables of one drain that are built anew."""

    def __init__(self, config: PipelineConfig, table_ids: TableIds, versions: DrainVersions) -> None:
        self._config = config
        self._table_ids = table_ids
        self._versions = versions
        self._pending: dict[str, ChangedShape] = {}
        self._begun: list[BegunSuccessor] = []
        self._left: set[str] = set()

    def collect_changed_shapes(
        self, captured: Iterable[CapturedTable], types: Mapping[int, PgType], rows: Mapping[str, TableRow]
    ) -> None:
        """Collect the tables whose shape in the catalogue does not fit their Delta tables."""
        for table in captured:
            row = rows.get(str(table.table))
            is_parked = row is not None and is_parked_for_its_shape(row)
            reshaped_table = self._in_present_shape(table, types) if is_parked else self.changed_shape(table, types)
            if reshaped_table is not None:
                self._pending[str(table.table)] = reshaped_table

    def _in_present_shape(self, captured: CapturedTable, types: Mapping[int, PgType]) -> ChangedShape | None:
        """A table that is parked for its shape, to be built anew in its present shape: its waiting changes may not fit
        together in one table."""
        if self._versions.has_no_shape(captured.table):
            return None
        return self._in_its_shape(captured, types, "definitions that do not fit into one table are staged of it")

    def _in_its_shape(self, captured: CapturedTable, types: Mapping[int, PgType], reason: str) -> ChangedShape | None:
        shape, unfit = catalogue_shape(captured, types, self._versions.latest(captured.table))
        if unfit or self._config.evolves(captured.name) != "follow":
            return None
        return ChangedShape(captured, shape, reason)

    def changed_shape(self, captured: CapturedTable, types: Mapping[int, PgType]) -> ChangedShape | None:
        """The table with the shape that another table has to take; None if its own Delta tables can take it."""
        if self._config.evolves(captured.name) != "follow":
            return None
        if self._versions.has_no_shape(captured.table):
            return None
        latest = self._versions.latest(captured.table)
        ahead = [] if latest is not None else self._versions.ahead(captured.table)
        if latest is None and not ahead:
            return None
        shape, unfit = catalogue_shape(captured, types, latest or ahead[-1])
        live = {column.attnum for column in captured.columns}
        before = latest or ahead[0]
        if captured.kind == "p" and captured.identity == "default" and before.key and not captured.key:
            # From PostgreSQL 18 on the stream uses a root's primary key before it is valid, so each reading of the
            # catalogue would differ. A dropped key is in a message too.
            return None
        dropped = {c.name for c in before.columns if c.attnum and c.attnum not in live}
        reason = "" if unfit else reshaped(shape_differences(latest, ahead, shape, dropped))
        return ChangedShape(captured, shape, reason) if reason else None

    def build_anew(self, captured: CapturedTable, types: Mapping[int, PgType], reason: str) -> None:
        """Build a table anew in its present shape, from this run's heartbeat on."""
        if (reshaped_table := self._in_its_shape(captured, types, reason)) is not None:
            self._pending.setdefault(str(captured.table), reshaped_table)

    def replay(self, captured: Iterable[CapturedTable]) -> None:
        """Build these tables anew from staging, from this run's heartbeat on. A table with another shape by then is
        built anew in that shape."""
        for table in captured:
            latest = self._versions.latest(table.table)
            if latest is not None:
                asked = ChangedShape(table, latest, "it is replayed", backfill_marks.REPLAYED)
                self._pending.setdefault(str(table.table), asked)

    @property
    def held(self) -> frozenset[str]:
        """The tables whose fingerprints wait for the heartbeat. A run that ends earlier leaves the decision to the next
        one."""
        return frozenset(self._pending)

    @property
    def left(self) -> frozenset[str]:
        """The tables that another one has replaced, or will replace at the heartbeat."""
        return frozenset(self._pending.keys() | self._left)

    def begin(self, oid: int, called: TableName, reason: str, pending: ChangedShape | None = None) -> TableName | None:
        """Give the relation another id from here on, and return it. None if its table has to be parked instead. A
        replayed table keeps its version."""
        before = self._table_ids.recorded_id(oid)
        kind = ANOTHER_SHAPE if pending is None else pending.kind
        if before is None or (kind == ANOTHER_SHAPE and self._config.evolves(called) != "follow"):
            return None
        table = self._table_ids.begin_successor(oid)
        shape = None if pending is None else replace(pending.shape, table=table)
        if shape is not None and kind == ANOTHER_SHAPE:
            shape = replace(shape, version=1)
        self._begun.append(BegunSuccessor(table, before, reason, shape, kind))
        self._pending.pop(str(before), None)
        self._left.add(str(before))
        return table

    def begin_by_trigger(self, defined: ChangedShape) -> None:
        """Begin a table for a shape that the event trigger defined and no change has."""
        captured = defined.captured
        if self._config.evolves(captured.name) == "follow":
            self.begin(captured.relation_oid, captured.name, defined.reason, defined)

    def at_heartbeat(self, catalog: Catalog) -> None:
        """Begin the tables whose new shape only the catalogue has: every change so far came before it. This also covers
        tables whose first changes in this drain have a shape that is no longer valid, or leave the columns in
        doubt."""
        for pending in list(self._pending.values()):
            self._begin_pending(pending)
        self._pending.clear()
        for captured in catalog.tables.values():
            table = self._table_ids.recorded_id(captured.relation_oid)
            if table is None or not captured.published or not self._versions.has_begun(table):
                continue
            if (reshaped_table := self.changed_shape(captured.kept_as(table), catalog.types)) is not None:
                self._begin_pending(reshaped_table)

    def _begin_pending(self, pending: ChangedShape) -> None:
        captured = pending.captured
        if self._table_ids.recorded_id(captured.relation_oid) == captured.table:
            self.begin(captured.relation_oid, captured.name, pending.reason, pending)

    def manifest_notes(self, staged: Iterable[TableSchema], end_lsn: Lsn) -> tuple[list[TableSchema], list[TableMark]]:
        """Definitions without a change, and marks, for the manifest of a batch that ends there. A table that begins
        with a change of a later batch waits for that batch."""
        names = {schema.table for schema in staged}
        saying = [begun for begun in self._begun if begun.shape is not None or begun.table in names]
        self._begun = [begun for begun in self._begun if begun not in saying]
        shapes = [begun.shape for begun in saying if begun.shape is not None and begun.table not in names]
        return shapes, [self._mark(begun, end_lsn) for begun in saying]

    def _mark(self, begun: BegunSuccessor, end_lsn: Lsn) -> TableMark:
        seen = self._table_ids.id_for_readers(begun.before)
        until = "all rows are read" if begun.kind == ANOTHER_SHAPE else "a merge has built it from staging"
        reason = f"{begun.reason}: it is built anew beside {seen.exact}, which readers see as of {end_lsn} at most"
        return needs_backfill(begun.table, f"{reason} until {until}", kind=begun.kind)


def is_parked_for_its_shape(row: TableRow) -> bool:
    """Whether the table is parked because its waiting changes fit into no table, as an older version of Tidemark or
    another `evolve` left it."""
    return row.life.is_parked and row.error is not None and row.error.kind in FITS_NOT


def may_have_another(row: TableRow) -> bool:
    """Whether the ledger's fingerprint may already have another shape than the Delta tables: the table was marked or
    parked then, or the preflight of its join took the fingerprint. No chunk with that shape may exist."""
    return row.life.needs_backfill or is_parked_for_its_shape(row)
