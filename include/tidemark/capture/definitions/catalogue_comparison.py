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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from msgspec import structs

from tidemark.capture.continuity import generation
from tidemark.capture.definitions.column_guarding import ColumnGuards, LedgerGuards
from tidemark.capture.definitions.marks import (
    KEY_CAME_LATER,
    catalogue_marks,
    key_error,
    key_not_valid,
    leaves_without_wal_mark,
    marks_of,
    park,
    passed_over_marks,
)
from tidemark.capture.definitions.passing_partitions import PassingPartitions
from tidemark.capture.definitions.relation_versions import EarlierFingerprints, RelationLookup, RelationVersions
from tidemark.capture.definitions.successor_shapes import SuccessorShapes, may_have_another
from tidemark.capture.definitions.table_definition import Catalog
from tidemark.capture.definitions.trigger_definitions import TriggerDefinitions
from tidemark.capture.definitions.truncates import Truncates
from tidemark.capture.open_batch import WrittenBatch
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.errors import SchemaNotFollowed, TidemarkError
from tidemark.formats.manifest import TableMark
from tidemark.ledger.captured import joins, schema_versions, table_errors, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn, WalPoint
from tidemark.names import TableName
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.schema.evolution import Difference, Verdict
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source import event_trigger
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.table_locks import lock_bounded
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
        self._store = store
        self._generation = open_generation
        self._passed_over = table_errors.passed_over(ledger)
        self._table_ids = TableIds(config, ledger, open_generation.system_identifier)
        self._table_ids.record_names(source)
        rows = {row.table: row for row in tables.all_of(ledger)}
        # The fingerprints with which the last run began. If all changes up to its heartbeat are staged, they are older
        # than every other change.
        before = {
            table: Fingerprint.from_json(row.fingerprint) for table, row in rows.items() if row.fingerprint is not None
        }
        self._captured = {table for table, row in rows.items() if row.life.is_captured}
        self._with_existing_rows = {table for table, row in rows.items() if row.life.may_be_seen_empty}
        self._marked: set[str] = set()  # by this drain
        self._are_partitions: dict[int, bool] = {}
        self._bare = joins.restarted(ledger)
        named = {table.relation_oid: table.table for table in catalog.captured_tables(source, config)}
        self._guarding = ColumnGuards(LedgerGuards(config, ledger, server), source, named)
        installed = event_trigger.installed_trigger(source, config) or InstalledTrigger(None)
        self.by_trigger = TriggerDefinitions(installed.keys, installed.since_xid, config.publication)
        # By table whose definitions the trigger wrote: the marks by the catalogue, which count if it missed a change.
        self._if_missed: dict[str, tuple[TableMark, ...]] = {}
        self._before = before
        self.schemas = RelationVersions(
            config.rule,
            self._read_catalogue,
            schema_versions.StreamedVersions(ledger),
            lambda t: schema_versions.ahead(ledger, t),
            lambda t: schema_versions.merged(ledger, t),
            RelationLookup(
                self._kept_as,
                self._captured_as,
                self._guarding.place,
                self._keep_as_another,
                self._has_no_shape,
                self._guarding.applied,
                self.by_trigger,
            ),
        )
        self._reshaping = SuccessorShapes(
            config, ledger, self._table_ids, self.schemas.streamed, self.schemas.has_no_shape
        )
        self._before_is_staged = open_generation.heartbeat_lsn == open_generation.staged_lsn
        self._fingerprints, self._changed, self._marks, self._truncates = self._read_fingerprints(rows, before)
        self._truncated = self._truncates.held
        self._first = self.schemas.catalog
        # The fingerprint of a table's join may be younger than its changes, which a publication of all tables has too.
        young = joins.judged_above(ledger, open_generation.staged_lsn)
        self._grown = self._with_more_columns(before) | (young & self._fingerprints.keys())
        self._key_null: dict[TableName, set[str]] = {}
        self._key_came_later: set[TableName] = set()
        self._held = self._truncated | self._reshaping.held | self._grown | self._if_missed.keys()
        self._changed -= self._grown | self._if_missed.keys()
        self.next_xid = _next_xid(source)
        staged = {t: fingerprint for t, fingerprint in before.items() if self._before_is_staged and t not in young}
        earlier = EarlierFingerprints(staged, self._fingerprints, self.next_xid)
        self.schemas.use_earlier_readings(earlier, self._lost_numbers(), before)
        self.partitions = PassingPartitions(
            self._fingerprints,
            before,
            self._captured_as,
            self.schemas.streamed,
            self.read_fingerprint,
            self.next_xid,
        )

    def replay(self, asked: Collection[str]) -> None:
        """Build these tables anew from the heartbeat on. Their fingerprints of this run are dropped; the next run reads
        those of the new tables."""
        catalogue = self.schemas.catalog
        self._reshaping.replay(table for table in catalogue.tables.values() if str(table.table) in asked)
        self._leave_to_others()

    def _leave_to_others(self) -> None:
        held = self._reshaping.held
        self._held |= held
        self._changed -= held
        self._marks = tuple(mark for mark in self._marks if mark.table not in held)

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

    def at_end_of_batch(self, end_lsn: Lsn) -> list[TableSchema]:
        """Return the versions that only the event trigger defined in this batch. No later drain reads its messages
        again."""
        versions = []
        for told in self.schemas.versions_by_trigger(end_lsn):
            if isinstance(told, TableSchema):
                versions.append(told)
            else:
                self._reshaping.begin_by_trigger(told)
        return versions

    def at_heartbeat(self) -> list[TableSchema]:
        """Decide what waited until every change before this run's reading is staged. Returns versions with new columns
        that no change has yet."""
        self._compare_with_trigger()
        for captured in self.schemas.catalog.tables.values():
            if captured.table in self._key_came_later:
                self._reshaping.build_anew(captured, self.schemas.catalog.types, KEY_CAME_LATER)
        self._leave_to_others()
        self._reshaping.at_heartbeat(self.schemas.catalog, self.schemas.has_message)
        added = [
            self.schemas.version_without_change(captured, self._first.types)
            for captured in self._first.tables.values()
            if str(captured.table) in self._grown - self._reshaping.left
        ]
        self._marks += tuple(one for one in added if isinstance(one, TableMark))
        return [one for one in added if isinstance(one, TableSchema)]

    def _compare_with_trigger(self) -> None:
        """Where the catalogue shows more than the trigger wrote, the trigger missed a change: the catalogue's
        differences count."""
        for table, marks in self._if_missed.items():
            fingerprint = self._fingerprints[table]
            if self.by_trigger.agrees(self._before[table], fingerprint, self._streamed_before.get(table)):
                storage = self.by_trigger.with_storage(fingerprint, self._first.seen_below)
                self._fingerprints[table] = structs.replace(fingerprint, relfilenode=storage)
            else:
                self._marks += marks
                self.by_trigger.doubt(fingerprint.relation_oid)

    def _with_more_columns(self, before: Mapping[str, Fingerprint]) -> frozenset[str]:
        """The tables that have more columns than in the previous reading. Their fingerprints wait for the heartbeat, so
        that after an early end the next run still detects that no change has the columns."""
        return frozenset(
            table
            for table, fingerprint in self._fingerprints.items()
            if table in before
            and before[table].relation_oid == fingerprint.relation_oid
            and before[table].last_attnum < fingerprint.last_attnum
        )

    def manifest_notes(self, staged: WrittenBatch, *, at_heartbeat: bool) -> ManifestNotes:
        """The part of this batch's manifest about definitions; `at_heartbeat` for the last batch of the run."""
        of_partitions, with_partition = self.partitions.take()
        marks = [*self._marks, *self.schemas.take_renamed(), *of_partitions, *self._truncates.take_refilled()]
        changed = self._changed | (with_partition - self._held)
        if not at_heartbeat:
            # This run may end before it stages their fingerprints, and the partition may be gone in the next run.
            unsure = Difference(Verdict.NEEDS_BACKFILL, "a partition came while another was truncated")
            for table in sorted(with_partition & self._truncated):
                marks += marks_of(TableName.parse(table), [unsure])
        if at_heartbeat:
            changed |= self._held - self._reshaping.left
            marks += self._truncates.marks()
        shapes, marks_of_shapes = self._reshaping.manifest_notes(staged.schemas, staged.end_lsn)
        marks += marks_of_shapes
        for schema in staged.schemas:
            marks += self.schemas.take_marks(schema)
        marks += [park(table, self._key_error(table, columns)) for table, columns in staged.key_unfit.items()]
        fingerprints = {table: fingerprint for table, fingerprint in self._fingerprints.items() if table in changed}
        fingerprints |= self._doubted(fingerprints)
        self._marked |= {mark.table for mark in marks}
        return ManifestNotes(tuple(shapes), fingerprints, tuple(marks))

    def _key_error(self, table: TableName, unfit: Collection[str]) -> TidemarkError:
        """The error of a table whose rows have NULL in its key. Under FULL identity the stream uses a new key for rows
        from before it."""
        if table in self._key_came_later:
            return SchemaNotFollowed(table=table, difference=KEY_CAME_LATER)
        return key_error(table, unfit, sorted(self._key_null.get(table, ())))

    def _doubted(self, fingerprints: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
        """Fingerprints, without the trigger's transaction, of tables for which the trigger missed a change."""
        known = {**self._before, **fingerprints}
        relations_in_doubt = {
            t: fingerprint
            for t, fingerprint in known.items()
            if fingerprint.told and self.by_trigger.is_doubted(fingerprint.relation_oid)
        }
        return {table: structs.replace(fingerprint, told=0) for table, fingerprint in relations_in_doubt.items()}

    def registered(self) -> None:
        """Called when the manifest is registered: later manifests do not repeat its marks and fingerprints."""
        self._marks, self._changed = (), frozenset()

    def heartbeat_registered(self, end: WalPoint) -> None:
        """Called when the heartbeat is registered: this reading is now older than every change that is not staged."""
        self._guarding.heartbeat_registered()
        for table in self._whole_in_stream():
            joins.clear_existing_rows(self._ledger, table, end)

    def _whole_in_stream(self) -> list[str]:
        """The tables that were created in this drain's stream and have all their rows in it. The trigger followed each
        from its creation on, and an earlier fingerprint proves that the publication has published the table since.
        Tables that this drain marked are left out."""
        since = self.by_trigger.since if self._before_is_staged else 0
        earlier = [fingerprint for fingerprint in self._before.values() if since and fingerprint.told == since]
        left = self._reshaping.left | self._marked
        found = {
            fingerprint.relation_oid: table
            for table, fingerprint in self._fingerprints.items()
            if table in self._with_existing_rows - left
            and fingerprint.is_as_created
            and any(fingerprint.is_published_since(one) for one in earlier)
        }
        made = catalog.made_by(self._source, found) if found else {}
        return [found[oid] for oid, made_by in made.items() if self.by_trigger.has_all_of(oid, made_by, self._config)]

    @property
    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """The fingerprint of each table."""
        return self._fingerprints

    def lasting_fingerprints(self) -> dict[str, Fingerprint]:
        """The fingerprints that the next comparison may use. Left out are tables that are kept as another one by now,
        and tables that had no shape yet: the stream may have given them an older one since."""
        left = self._reshaping.left | set(filter(self.schemas.has_message, self._bare))
        return {table: fingerprint for table, fingerprint in self._fingerprints.items() if table not in left}

    def read_fingerprint(self, table: str) -> Fingerprint | None:
        """The current fingerprint of one table; None if it is not captured any more."""
        relation = self._table_ids.relation_of(TableName.parse(table))
        if relation is None:
            return None
        catalogue = self._read_catalogue(relation.oid)
        here = [t for t in catalogue.tables.values() if str(t.table) == table and t.published]
        if here and self._reshaping.changed_shape(here[0], catalogue.types) is not None:
            return None  # the relation gets another id once this reading is staged
        return catalog.fingerprint(self._source, self._config.publication, here).get(table)

    # --- the id of a relation ----------------------------------------------------------------------------------------

    def _kept_as(self, oid: int, called: TableName) -> TableName | None:
        """The captured table of a relation; None if its errors keep it out of the capture. Also None for a partition
        that is published by itself: no backfill would read its older rows."""
        if self._captured_as(oid) is None and self._is_partition(oid):
            return None
        table = self._table_ids.id_of(oid, called)
        return None if str(table) in self._passed_over else table

    def _is_partition(self, oid: int) -> bool:
        """Whether the relation is a partition. The list is read once and again only for a relation that is not in
        it."""
        if not self._are_partitions:
            self._are_partitions = dict.fromkeys(catalog.partitions(self._source), True)
        if oid not in self._are_partitions:
            self._are_partitions[oid] = oid in catalog.partitions(self._source, oid)
        return self._are_partitions[oid]

    def _keep_as_another(self, oid: int, called: TableName, reason: str) -> TableName | None:
        return self._reshaping.begin(oid, called, reason)

    def _captured_as(self, oid: int) -> TableName | None:
        table = self._table_ids.recorded_id(oid)
        return table if str(table) in self._captured else None

    def _has_no_shape(self, table: str) -> bool:
        # Asked again: a batch of this drain may have claimed chunks.
        return table in self._bare and table in joins.restarted(self._ledger)

    # --- the catalogue ------------------------------------------------------------------------------------------------

    def _read_catalogue(self, relation: int | None = None) -> Catalog:
        with lock_bounded(self._source, self._config.bounds.lock_timeout_s, "the published tables"):
            seen_below = _ended_below(self._source)
            captured = catalog.captured_tables(self._source, self._config, relation)
            types = catalog.read_types(self._source)
        kept = self._table_ids.with_ids(map(self._guarding.applied, captured))
        return Catalog({table.relation_oid: table for table in kept}, types, seen_below)

    def _lost_numbers(self) -> Callable[[str], frozenset[int]]:
        """A function to the lost column numbers of a table; it reads nothing if the source never lost WAL that was
        staged."""
        left = generation.lost_parts(self._ledger)
        return lambda table: schema_versions.lost_numbers(self._ledger, table, left) if left else frozenset()

    def _read_fingerprints(
        self, rows: Mapping[str, TableRow], before: Mapping[str, Fingerprint]
    ) -> tuple[dict[str, Fingerprint], frozenset[str], tuple[TableMark, ...], Truncates]:
        """This run's fingerprints, the tables for which they differ from the ledger's, the marks that follow (R11), and
        the truncates to prove."""
        to_read = [
            t
            for t in self.schemas.catalog.tables.values()
            if (t.published or str(t.table) in before) and str(t.table) not in self._passed_over
        ]
        prints = catalog.fingerprint(self._source, self._config.publication, to_read)
        with_comments = catalog.with_comments(self._source, prints)
        below = self.schemas.catalog.seen_below
        fingerprints = {
            table: fingerprint.carried(before.get(table)).missing(
                before.get(table), below, staged=self._before_is_staged
            )
            for table, fingerprint in with_comments.items()
        }
        fingerprints = {
            table: structs.replace(fingerprint, told=self.by_trigger.since)
            for table, fingerprint in fingerprints.items()
        }
        changed = frozenset(table for table, fingerprint in fingerprints.items() if before.get(table) != fingerprint)
        gone = self._gone(rows, {table for table in before if table not in fingerprints})
        # Where no row is in Delta yet, none is older than what the catalogue shows: each chunk is compared with it.
        with_rows = {
            table: fingerprint for table, fingerprint in fingerprints.items() if not self.schemas.has_no_shape(table)
        }
        trusted = {
            t: fingerprint
            for t, fingerprint in with_rows.items()
            if t in before and 0 != before[t].told == fingerprint.told
        }
        marks = catalogue_marks(with_rows, before, gone, self.schemas.streamed, trusted)
        for table, fingerprint in trusted.items():
            if before[table] != fingerprint:
                self._if_missed[table] = tuple(catalogue_marks({table: fingerprint}, before, (), self.schemas.streamed))
        self._streamed_before = {table: self.schemas.streamed(table) for table in self._if_missed}
        # In a manifest too, so that a ledger that is rebuilt from manifests has the gap.
        marks += passed_over_marks(
            row.table for row in rows.values() if row.table in self._passed_over and not row.life.is_marked_for_good
        )
        marks += [key_not_valid(table.table) for table in to_read if self._has_key_too_early(table)]
        marks += [leaves_without_wal_mark(t.table, t.leaves_without_wal) for t in to_read if t.leaves_without_wal]
        truncates = Truncates(
            fingerprints,
            before,
            lambda table: batches.truncating(self._ledger, self._generation.number, table),
            lambda file: read_table(self._store, file),
        )
        may_be_others = [
            table
            for table in to_read
            if (str(table.table) in changed and str(table.table) not in self._if_missed)
            or ((row := rows.get(str(table.table))) is not None and may_have_another(row))
        ]
        self._reshaping.collect_changed_shapes(may_be_others, self.schemas.catalog.types, rows)
        pending = self._reshaping.held
        marks = [mark for mark in marks if mark.table not in pending]
        return fingerprints, changed - truncates.held - pending, tuple(marks), truncates

    def _gone(self, rows: Mapping[str, TableRow], missing: Collection[str]) -> list[str]:
        """The tables among `missing` that were dropped at the source, although the pipeline file still names them.
        Reported once: the mark stays until the table is back. A table is left out if another one has its name, because
        that one is captured."""
        at_source = {str(t.table) for t in self.schemas.catalog.tables.values()}
        return sorted(
            table
            for table in missing
            if table not in at_source
            and self._config.rule(self._table_ids.name_of(TableName.parse(table))) is not None
            and not self._table_ids.is_superseded(TableName.parse(table))
            and (rows[table].life.is_captured or not rows[table].life.needs_backfill)
        )

    def _has_key_too_early(self, table: catalog.CapturedTable) -> bool:
        """Whether the stream uses a root's primary key that the catalogue has as not valid yet."""
        if table.kind != "p" or table.identity != "default" or table.key:
            return False
        latest = self.schemas.streamed(str(table.table))
        return latest is not None and bool(latest.key)


def _ended_below(conn: psycopg.Connection[Any]) -> int:
    """A 64-bit transaction id. Every transaction with a lower id has ended."""
    row = conn.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def _next_xid(conn: psycopg.Connection[Any]) -> int:
    """The next 64-bit transaction id at the source. The 32-bit ids of the stream are widened with it."""
    row = conn.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])
