"""Compares the source's catalogue with the previous run's, and classifies each difference of a table (R11).

    the run begins ──► as which table each relation is kept, columns' guards, the catalogue
                   ──► a fingerprint of each table, beside the ledger's ──► marks; the next manifest has what changed
    RELATION       ──► which table in which version (`capture.definitions.relation_versions`), by the same reading
    a chunk        ──► one table read again, for its claim
    the heartbeat  ──► what cannot be decided before all that this reading contains is staged: `held`

The catalogue is read before this run's heartbeat. Once the heartbeat is staged, so is everything that this reading
contains, and the ledger keeps the reading from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from tidemark.capture.continuity import generation
from tidemark.capture.definitions.captured_relations import CapturedRelations
from tidemark.capture.definitions.catalogue_readings import CatalogueReadings, EarlierFingerprints
from tidemark.capture.definitions.column_guarding import ColumnGuards, LedgerGuards
from tidemark.capture.definitions.drain_versions import DrainVersions
from tidemark.capture.definitions.marks import (
    KEY_CAME_LATER,
    key_error,
    key_not_valid,
    leaves_without_wal_mark,
    needs_backfill,
    park,
    passed_over_marks,
)
from tidemark.capture.definitions.passing_partitions import PassingPartitions
from tidemark.capture.definitions.relation_versions import RelationVersions
from tidemark.capture.definitions.successor_shapes import SuccessorShapes, may_have_another
from tidemark.capture.definitions.table_definition import Catalog
from tidemark.capture.definitions.table_fingerprints import TableFingerprints
from tidemark.capture.definitions.trigger_definitions import TriggerDefinitions
from tidemark.capture.definitions.truncates import Truncates
from tidemark.capture.open_batch import WrittenBatch
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.errors import SchemaNotFollowed, TidemarkError
from tidemark.formats.manifest import TableMark
from tidemark.ledger.captured import joins, tables
from tidemark.ledger.captured.schema_versions import RecordedVersions
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import WalPoint
from tidemark.names import TableName
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source import event_trigger
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.catalogue.table_locks import lock_bounded
from tidemark.source.catalogue.transaction_visibility import next_xid, snapshot_xmin
from tidemark.source.event_trigger import InstalledTrigger
from tidemark.source.wal.slot import Server
from tidemark.staging.batch_writer import read_table
from tidemark.storage.store import Store


@dataclass(frozen=True, slots=True)
class ManifestNotes:
    """The part of a batch's manifest about definitions: versions that no change of the batch has, fingerprints by table
    that the ledger does not have yet, and marks."""

    shapes: tuple[TableSchema, ...]
    fingerprints: dict[str, Fingerprint]
    marks: tuple[TableMark, ...]


class CatalogueComparison:
    """The comparison of one drain, which holds the lease `slot`: meanwhile no table joins the pipeline or leaves it."""

    def __init__(
        self,
        config: PipelineConfig,
        source: psycopg.Connection[Any],
        ledger: Ledger,
        store: Store,
        server: Server,
        open_generation: Generation,
    ) -> None:
        self._config = config
        self._source = source
        self._ledger = ledger
        self._table_ids = TableIds(config, ledger, open_generation.system_identifier)
        self._table_ids.record_names(source)
        rows = {row.table: row for row in tables.all_of(ledger)}
        self._with_existing_rows = {table for table, row in rows.items() if row.life.may_be_seen_empty}
        self._versions = DrainVersions(RecordedVersions(ledger, generation.lost_parts(ledger)))
        named = {table.relation_oid: table.table for table in catalog.captured_tables(source, config)}
        self._guarding = ColumnGuards(LedgerGuards(config, ledger, server), source, named)
        self._relations = CapturedRelations(config, source, ledger, self._table_ids, self._guarding, rows.values())
        installed = event_trigger.installed_trigger(source, config) or InstalledTrigger(None)
        self.by_trigger = TriggerDefinitions(installed.keys, installed.since_xid, config.publication)
        self._successors = SuccessorShapes(config, self._table_ids, self._versions)
        self._first = self._read_catalogue()
        is_staged = open_generation.heartbeat_lsn == open_generation.staged_lsn
        self._fingerprints = TableFingerprints(
            rows.values(), self.by_trigger, self._versions, self._first.seen_below, is_staged=is_staged
        )
        before, now = self._fingerprints.before, self._fingerprints.now
        to_read = [
            table
            for table in self._first.tables.values()
            if (table.published or str(table.table) in before) and str(table.table) not in self._relations.passed_over
        ]
        self._fingerprints.read(source, config.publication, to_read)
        self._marks = self._first_marks(rows, to_read)  # for the next manifest
        self._truncates = Truncates(
            now,
            before,
            lambda table: batches.truncating(ledger, open_generation.number, table),
            lambda file: read_table(store, file),
        )
        self._truncated = self._truncates.held
        changed = self._fingerprints.changed
        self._find_successors(rows, to_read, changed - self._fingerprints.awaiting_trigger)
        # The fingerprint of a table's join may be younger than its changes, which a publication of all tables has too.
        young = joins.judged_above(ledger, open_generation.staged_lsn)
        self._grown = self._fingerprints.with_more_columns | (young & now.keys())
        # Fingerprints that the next manifest records, and those that wait for the manifest of the heartbeat.
        self._held = self._truncated | self._grown | self._fingerprints.awaiting_trigger
        self._changed = changed - self._held
        self._leave_to_successors()
        self._marked: set[str] = set()  # by this drain
        self._key_null: dict[TableName, set[str]] = {}
        self._key_came_later: set[TableName] = set()
        self.next_xid = next_xid(source)
        staged = {table: one for table, one in before.items() if is_staged and table not in young}
        earlier = EarlierFingerprints(before, staged, now, self.next_xid)
        self._readings = CatalogueReadings(self._read_catalogue, self._first, earlier)
        self.relation_versions = RelationVersions(
            self._relations, self._readings, self.by_trigger, self._versions, self._successors
        )
        self.partitions = PassingPartitions(
            now, before, self._relations.captured_before, self._versions.latest, self.read_fingerprint, self.next_xid
        )

    def _first_marks(self, rows: Mapping[str, TableRow], to_read: Collection[CapturedTable]) -> list[TableMark]:
        """The marks that the first reading leads to."""
        passed_over = self._relations.passed_over
        return [
            *self._fingerprints.marks(self._gone(rows)),
            # In a manifest too, so that a ledger that is rebuilt from manifests has the gap.
            *passed_over_marks(
                table for table, row in rows.items() if table in passed_over and not row.life.is_marked_for_good
            ),
            *(key_not_valid(table.table) for table in to_read if self._has_key_too_early(table)),
            *(leaves_without_wal_mark(t.table, t.leaves_without_wal) for t in to_read if t.leaves_without_wal),
        ]

    def _find_successors(
        self, rows: Mapping[str, TableRow], to_read: Collection[CapturedTable], changed: Collection[str]
    ) -> None:
        """Find the tables that another one has to replace from the heartbeat on, for their shapes in the catalogue."""
        may_be_others = [
            table
            for table in to_read
            if str(table.table) in changed
            or ((row := rows.get(str(table.table))) is not None and may_have_another(row))
        ]
        self._successors.collect_changed_shapes(may_be_others, self._first.types, rows)

    def replay(self, asked: Collection[str]) -> None:
        """Build these tables anew from the heartbeat on. Their fingerprints of this run are dropped; the next run reads
        those of the new tables."""
        catalogue = self._readings.catalog
        self._successors.replay(table for table in catalogue.tables.values() if str(table.table) in asked)
        self._leave_to_successors()

    def _leave_to_successors(self) -> None:
        """Leave the tables that are built anew out of manifests: marks and fingerprints of them end with them."""
        held = self._successors.held
        self._held |= held
        self._changed -= held
        self._marks = [mark for mark in self._marks if mark.table not in held]

    def note(self, block: DecodedBlock) -> None:
        """Collect from a block of the stream what the comparison needs: truncates, and keys with NULL."""
        self._truncates.note(block)
        for change in block.changes:
            if change.counts.get("truncate"):
                self.by_trigger.note_truncate(change.schema.relation_oid)
            if change.key_null:
                self._key_null.setdefault(change.schema.table, set()).update(change.key_null)
            if change.key_null and change.schema.identity == "full":
                self._key_came_later.add(change.schema.table)

    def at_heartbeat(self) -> list[TableSchema]:
        """Decide what waited until every change before this run's reading is staged. Returns versions with new columns
        that no change has yet."""
        self._marks += self._fingerprints.compare_with_trigger()
        for captured in self._readings.catalog.tables.values():
            if captured.table in self._key_came_later:
                self._successors.build_anew(captured, self._readings.catalog.types, KEY_CAME_LATER)
        self._leave_to_successors()
        self._successors.at_heartbeat(self._readings.catalog)
        grown = self._grown - self._successors.left
        added = [
            self.relation_versions.version_without_change(captured, self._first.types)
            for captured in self._first.tables.values()
            if str(captured.table) in grown
        ]
        self._marks += [one for one in added if isinstance(one, TableMark)]
        return [one for one in added if isinstance(one, TableSchema)]

    def manifest_notes(self, staged: WrittenBatch, *, at_heartbeat: bool) -> ManifestNotes:
        """The part of this batch's manifest about definitions; `at_heartbeat` for the last batch of the run."""
        of_partitions, with_partition = self.partitions.take()
        marks = [
            *self._marks,
            *self.relation_versions.take_table_marks(),
            *of_partitions,
            *self._truncates.take_refilled(),
        ]
        changed = self._changed | (with_partition - self._held)
        if not at_heartbeat:
            # This run may end before it stages their fingerprints, and the partition may be gone in the next run.
            reason = "a partition came while another was truncated"
            marks += [needs_backfill(table, reason) for table in sorted(with_partition & self._truncated)]
        if at_heartbeat:
            changed |= self._held - self._successors.left
            marks += self._truncates.marks()
        shapes, marks_of_shapes = self._successors.manifest_notes(staged.schemas, staged.end_lsn)
        marks += marks_of_shapes
        for schema in staged.schemas:
            marks += self._versions.take_marks(schema)
        marks += [park(table, self._key_error(table, columns)) for table, columns in staged.key_unfit.items()]
        self._marked |= {mark.table for mark in marks}
        return ManifestNotes(tuple(shapes), self._fingerprints.to_record(changed), tuple(marks))

    def _key_error(self, table: TableName, unfit: Collection[str]) -> TidemarkError:
        """The error of a table whose rows have NULL in its key. Under FULL identity the stream uses a new key for rows
        from before it."""
        if table in self._key_came_later:
            return SchemaNotFollowed(table=table, difference=KEY_CAME_LATER)
        return key_error(table, unfit, sorted(self._key_null.get(table, ())))

    def registered(self) -> None:
        """Called when the manifest is registered: later manifests do not repeat its marks and fingerprints."""
        self._marks, self._changed = [], frozenset()

    def heartbeat_registered(self, end: WalPoint) -> None:
        """Called when the heartbeat is registered: this reading is now older than every change that is not staged."""
        self._guarding.heartbeat_registered()
        candidates = self._with_existing_rows - self._successors.left - self._marked
        for table in self._fingerprints.whole_in_stream(self._source, self._config, candidates):
            joins.clear_existing_rows(self._ledger, table, end)

    @property
    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """The fingerprint of each table."""
        return self._fingerprints.now

    def lasting_fingerprints(self) -> dict[str, Fingerprint]:
        """The fingerprints that the next comparison may use. Left out are tables that are kept as another one by now,
        and tables that had no shape yet: the stream may have given them an older one since."""
        left = self._successors.left
        return {
            table: fingerprint
            for table, fingerprint in self.fingerprints.items()
            if table not in left and not self._versions.got_first_shape(table)
        }

    def read_fingerprint(self, table: str) -> Fingerprint | None:
        """The current fingerprint of one table; None if it is not captured any more."""
        relation = self._table_ids.relation_of(TableName.parse(table))
        if relation is None:
            return None
        catalogue = self._read_catalogue(relation.oid)
        here = [t for t in catalogue.tables.values() if str(t.table) == table and t.published]
        if here and self._successors.changed_shape(here[0], catalogue.types) is not None:
            return None  # the relation gets another id once this reading is staged
        return catalog.fingerprint(self._source, self._config.publication, here).get(table)

    # --- the catalogue ------------------------------------------------------------------------------------------------

    def _read_catalogue(self, relation: int | None = None) -> Catalog:
        with lock_bounded(self._source, self._config.bounds.lock_timeout_s, "the published tables"):
            seen_below = snapshot_xmin(self._source)
            captured = catalog.captured_tables(self._source, self._config, relation)
            types = catalog.read_types(self._source)
        kept = self._table_ids.with_ids(map(self._guarding.applied, captured))
        return Catalog({table.relation_oid: table for table in kept}, types, seen_below)

    def _gone(self, rows: Mapping[str, TableRow]) -> list[str]:
        """The captured tables that were dropped at the source, although the pipeline file still names them. Reported
        once: the mark stays until the table is back. A table is left out if another one has its name, because that one
        is captured."""
        at_source = {str(t.table) for t in self._first.tables.values()}
        missing = self._fingerprints.before.keys() - self._fingerprints.now.keys() - at_source
        gone = [t for t in missing if rows[t].life.is_captured or not rows[t].life.needs_backfill]
        superseded = set(self._table_ids.superseded(gone))
        return sorted(
            table
            for table in gone
            if table not in superseded
            and self._config.rule(self._table_ids.name_of(TableName.parse(table))) is not None
        )

    def _has_key_too_early(self, table: CapturedTable) -> bool:
        """Whether the stream uses a root's primary key that the catalogue has as not valid yet."""
        if table.kind != "p" or table.identity != "default" or table.key:
            return False
        latest = self._versions.latest(table.table)
        return latest is not None and bool(latest.key)
