"""Numbers each table's definitions: those that the drain meets in the stream, and those that a backfill finds.

A version is `streamed` once a registered batch holds files of it. The drain compares the stream's definition with the
last streamed version, never with a reader's: a column that so far only the catalogue has was not dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace
from psycopg.types.json import Jsonb

from tidemark.ledger.captured import backfill_marks, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import generations
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema

# Tables of which a drain asks one by one.
FEW: Final = 8


def adopt(ledger: Ledger, schema: TableSchema) -> TableSchema:
    """The shape with its version number. It gets a new number if the table's latest version is another shape or has
    no column numbers; `schema.version` is ignored. Two readers at once get one number."""
    with ledger.transaction():
        tables.add(ledger, str(schema.table))
        tables.lock(ledger, [str(schema.table)])
        versions = tables.versions(ledger, str(schema.table))
        if versions and versions[-1].same_shape(schema) and bool(versions[-1].published) >= bool(schema.published):
            return replace(versions[-1], relation_oid=schema.relation_oid)
        adopted = replace(schema, version=1 + (versions[-1].version if versions else 0))
        generation = generations.required(ledger)
        ledger.insert(
            "schema_versions",
            table=str(schema.table),
            version=adopted.version,
            definition=Jsonb(adopted.to_json()),
            generation=generation.number,
            start_lsn=generation.staged_lsn,
            streamed=False,
        )
    return adopted


def streamed(ledger: Ledger, table: str) -> list[TableSchema]:
    """The versions that registered batches have changes of, oldest first."""
    return tables.versions_of(ledger, [table], only_streamed=True).get(table, [])


def lost_numbers(ledger: Ledger, table: str, left: Mapping[int, Lsn]) -> frozenset[int]:
    """The column numbers that only occur in versions from WAL that the source lost. `left` has the position from
    which that is so, by generation. A new column may get such a number again.

    Chunks that were claimed below that position count as known there, wherever their version's first change was. If no
    version is known there, no row of the table is older, and rows of the lost part are read again.
    """
    if not left:
        return frozenset()
    rows = ledger.execute(
        """
        SELECT v.version, v.definition, v.generation, v.streamed, coalesce(b.end_lsn, v.start_lsn)
          FROM tidemark.schema_versions v
          LEFT JOIN tidemark.batches b
                 ON b.pipeline = v.pipeline AND b.generation = v.generation AND b.start_lsn = v.start_lsn
         WHERE v.pipeline = %s AND v."table" = %s
        """,
        (ledger.pipeline, table),
    )
    lost: set[int] = set()
    kept: set[int] = set()
    claimed = _claimed_below(ledger, table, left)
    for version, definition, generation, is_streamed, end_lsn in rows:
        # What a reader saw, it saw later than what was staged then.
        is_lost = generation in left and (not is_streamed or end_lsn > left[generation]) and version not in claimed
        (lost if is_lost else kept).update(TableSchema.from_json(definition).published)
    return frozenset(lost - kept) if kept else frozenset()


def _claimed_below(ledger: Ledger, table: str, left: Mapping[int, Lsn]) -> set[int]:
    """The versions of chunks that were claimed in WAL that the source still has."""
    rows = ledger.execute(
        """
        SELECT DISTINCT (f.value ->> 'schema_version')::int
          FROM tidemark.batch_tables b, jsonb_array_elements(b.claims) c, jsonb_array_elements(c.value -> 'files') f
         WHERE b.pipeline = %s AND b."table" = %s AND b.claims <> '[]'
           AND b.end_lsn <= coalesce((%s::jsonb ->> b.generation::text)::pg_lsn, b.end_lsn)
        """,
        (ledger.pipeline, table, Jsonb({str(generation): str(lsn) for generation, lsn in left.items()})),
    )
    return {version for (version,) in rows}


def ahead(ledger: Ledger, table: str) -> list[TableSchema]:
    """The versions above the last streamed one, which only readers use so far, oldest first."""
    newer = """
        NOT streamed AND version > coalesce((
            SELECT max(version) FROM tidemark.schema_versions s
             WHERE s.pipeline = v.pipeline AND s."table" = v."table" AND s.streamed), 0)
        """
    return _versions(ledger, newer, table)


def _versions(ledger: Ledger, condition: str, table: str) -> list[TableSchema]:
    query = (
        f'SELECT definition FROM tidemark.schema_versions v WHERE pipeline = %s AND "table" = %s AND {condition} '
        "ORDER BY version"
    )
    return [TableSchema.from_json(raw) for (raw,) in ledger.execute(query.encode(), (ledger.pipeline, table))]


def merged(ledger: Ledger, table: str) -> TableSchema | None:
    """The newest version with an applied change: the target's shape. None before that."""
    versions = _versions(
        ledger,
        # The stream's numbers only rise, so the last applied batch that has changes has the newest.
        """version = (SELECT max((file ->> 'schema_version')::int)
                        FROM (SELECT b.files
                                FROM tidemark.positions p
                               CROSS JOIN LATERAL (
                                     SELECT x.files FROM tidemark.batch_tables x
                                      WHERE x.pipeline = p.pipeline AND x.generation = p.generation
                                        AND x."table" = p."table" AND x.end_lsn <= p.applied_lsn AND x.files <> '[]'
                                      ORDER BY x.end_lsn DESC LIMIT 1) b
                               WHERE p.pipeline = v.pipeline AND p."table" = v."table"
                               ORDER BY p.generation DESC LIMIT 1) newest
                       CROSS JOIN LATERAL jsonb_array_elements(newest.files) AS file)""",
        table,
    )
    return versions[-1] if versions else None


class RecordedVersions:
    """The ledger's versions of one table after another, for a drain, which alone streams. Streamed versions of many
    tables are read together. `left` is as in `lost_numbers`."""

    def __init__(self, ledger: Ledger, left: Mapping[int, Lsn]) -> None:
        self._ledger = ledger
        self._left = left
        self._restarted = backfill_marks.restarted(ledger)
        self._asked = 0
        self._all: dict[str, list[TableSchema]] | None = None

    def streamed(self, table: str) -> list[TableSchema]:
        self._asked += 1
        if self._all is None and self._asked <= FEW:
            return streamed(self._ledger, table)
        if self._all is None:
            self._all = tables.versions_of(self._ledger, None, only_streamed=True)
        return self._all.get(table, [])

    def ahead(self, table: str) -> list[TableSchema]:
        return ahead(self._ledger, table)

    def merged(self, table: str) -> TableSchema | None:
        return merged(self._ledger, table)

    def lost_numbers(self, table: str) -> frozenset[int]:
        return lost_numbers(self._ledger, table, self._left)

    def was_restarted(self, table: str) -> bool:
        """Whether the table started anew before the drain and had no change since (`backfill_marks.restarted`)."""
        return table in self._restarted

    def is_restarted(self, table: str) -> bool:
        """As `was_restarted`, read again: a batch of this drain may have claimed chunks."""
        return table in self._restarted and table in backfill_marks.restarted(self._ledger)
