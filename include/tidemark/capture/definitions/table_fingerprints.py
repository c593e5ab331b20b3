"""Reads the fingerprint of each table as a run begins, and compares it with the one in the ledger (R11).

    another fingerprint           marks for what no change of the stream shows
    and the event trigger         what only the catalogue shows counts if the trigger missed a change; that is known at
    wrote the table's changes     the heartbeat, when all of its messages are read
    more columns                  the fingerprint waits for the heartbeat: after an early end, the next run still
                                  detects that no change has the columns

The ledger keeps a fingerprint once a manifest records it (`catalogue_comparison`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import psycopg
from msgspec import structs

from tidemark.capture.definitions.drain_versions import DrainVersions
from tidemark.capture.definitions.marks import catalogue_marks
from tidemark.capture.definitions.trigger_definitions import TriggerDefinitions
from tidemark.config import PipelineConfig
from tidemark.formats.manifest import TableMark
from tidemark.ledger.captured.tables import TableRow
from tidemark.names import TableName
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable


class TableFingerprints:
    """The fingerprints of one drain.

    - `before` are those in the ledger, with which the last run began. `is_staged`: all changes up to its heartbeat are
      staged, so `before` is older than every other change.
    - `now` are those of this run; the catalogue was read when all transactions below `seen_below` had ended.
    """

    def __init__(
        self,
        rows: Iterable[TableRow],
        by_trigger: TriggerDefinitions,
        versions: DrainVersions,
        seen_below: int,
        *,
        is_staged: bool,
    ) -> None:
        self.before = {row.table: Fingerprint.from_json(row.fingerprint) for row in rows if row.fingerprint is not None}
        self.is_staged = is_staged
        self.now: dict[str, Fingerprint] = {}
        self._by_trigger = by_trigger
        self._versions = versions
        self._seen_below = seen_below
        # The tables whose changes the trigger wrote: their last versions, and the marks by the catalogue.
        self._if_missed: dict[str, tuple[TableSchema | None, list[TableMark]]] = {}

    def read(self, source: psycopg.Connection[Any], publication: str, captured: Collection[CapturedTable]) -> None:
        """Read the fingerprints of these tables."""
        prints = catalog.with_comments(source, catalog.fingerprint(source, publication, captured))
        for table, fingerprint in prints.items():
            before = self.before.get(table)
            carried = fingerprint.carried(before).missing(before, self._seen_below, staged=self.is_staged)
            self.now[table] = structs.replace(carried, told=self._by_trigger.since)

    def marks(self, gone: Iterable[str]) -> list[TableMark]:
        """The marks for the differences. `gone` are captured tables that the source does not have any more."""
        # Where no row is in Delta yet, none is older than what the catalogue shows: each chunk is compared with it.
        with_rows = {t: one for t, one in self.now.items() if not self._versions.has_no_shape(TableName.parse(t))}
        trusted = [t for t, one in with_rows.items() if t in self.before and 0 != self.before[t].told == one.told]
        for table in trusted:
            if self.before[table] != self.now[table]:
                marks = catalogue_marks({table: self.now[table]}, self.before, (), self._versions.latest)
                self._if_missed[table] = self._versions.latest(TableName.parse(table)), marks
        return catalogue_marks(with_rows, self.before, gone, self._versions.latest, trusted)

    @property
    def changed(self) -> frozenset[str]:
        """The tables that have another fingerprint now than in the ledger."""
        return frozenset(table for table, fingerprint in self.now.items() if self.before.get(table) != fingerprint)

    @property
    def awaiting_trigger(self) -> frozenset[str]:
        """The changed tables whose changes the trigger wrote."""
        return frozenset(self._if_missed)

    @property
    def with_more_columns(self) -> frozenset[str]:
        """The tables that have more columns than before."""
        return frozenset(
            table
            for table, fingerprint in self.now.items()
            if table in self.before
            and self.before[table].relation_oid == fingerprint.relation_oid
            and self.before[table].last_attnum < fingerprint.last_attnum
        )

    def compare_with_trigger(self) -> list[TableMark]:
        """The marks of tables for which the catalogue shows more than the trigger wrote: the trigger missed a change.
        Called at the heartbeat."""
        missed = []
        for table, (streamed_before, marks) in self._if_missed.items():
            fingerprint = self.now[table]
            if self._by_trigger.agrees(self.before[table], fingerprint, streamed_before):
                storage = self._by_trigger.with_storage(fingerprint, self._seen_below)
                self.now[table] = structs.replace(fingerprint, relfilenode=storage)
            else:
                missed += marks
                self._by_trigger.doubt(fingerprint.relation_oid)
        return missed

    def to_record(self, changed: Collection[str]) -> dict[str, Fingerprint]:
        """The fingerprints of these tables for a manifest, and those for which the trigger missed a change: without the
        trigger's transaction."""
        fingerprints = {table: fingerprint for table, fingerprint in self.now.items() if table in changed}
        for table, fingerprint in {**self.before, **fingerprints}.items():
            if fingerprint.told and self._by_trigger.is_doubted(fingerprint.relation_oid):
                fingerprints[table] = structs.replace(fingerprint, told=0)
        return fingerprints

    def whole_in_stream(
        self, source: psycopg.Connection[Any], config: PipelineConfig, candidates: Collection[str]
    ) -> list[str]:
        """The tables among `candidates` that were created in this drain's stream and have all their rows in it. The
        trigger followed each from its creation on, and an earlier fingerprint proves that the publication has published
        the table since."""
        since = self._by_trigger.since if self.is_staged else 0
        earlier = [fingerprint for fingerprint in self.before.values() if since and fingerprint.told == since]
        created = {
            fingerprint.relation_oid: table
            for table, fingerprint in self.now.items()
            if table in candidates
            and fingerprint.is_as_created
            and any(fingerprint.is_published_since(one) for one in earlier)
        }
        made: Mapping[int, int] = catalog.made_by(source, created) if created else {}
        return [created[oid] for oid, made_by in made.items() if self._by_trigger.has_all_of(oid, made_by, config)]
