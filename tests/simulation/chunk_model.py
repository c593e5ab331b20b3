"""What the target holds by the rule of R7, worked out in Python from staged files and claims; no code of the merge.

`Model` stands in for the Spark application: `apply` reads a plan, folds everything that is registered up to the plan's
end from the beginning on, and writes the result that Spark would write, holes included: what became of the chunks of an
attempt that died before its result nobody says, and the holes that it brought only who counts them. Each time it also
looks whether the plan goes on where the table stands and brings all the evidence that its chunks need; a table holds
what was applied to it, and no more. Values are those of tests/support/delta_files.py; one whose base is known nowhere
is `HOLE`.

Where a table's definition changes, all that was staged is told in the names and with the columns of its newest version:
a column is its number at the source, and what a row lacks it has from the column's default. Generations follow one
another: what an older one staged, a chunk or sweep of a newer one has seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from sandbox.checks.comparison import compare_rows
from tests.support import delta_files, judge, stages
from tests.support.capture import Environment
from tidemark import failpoints
from tidemark.formats import layout
from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import BatchManifest, Claim, StagedFile, Sweep, TableChanges
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.formats.merge_result import ChunkResult, Holes, PlanResult, TableResult
from tidemark.formats.snapshot import Snapshot
from tidemark.ledger.captured import tables
from tidemark.ledger.staged import batches, generations
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.staging.batch_writer import read_table
from tidemark.storage.store import Store

HOLE = "a value whose base is known nowhere"

Row = dict[str, Any]
Key = tuple[Any, ...]
At = tuple[int, Lsn]  # generation, end of a batch

NOWHERE: At = 0, Lsn(0)


@dataclass(frozen=True, slots=True)
class Change:
    """A staged change; `row` has the source's columns."""

    generation: int
    commit_lsn: int
    ordinal: int
    xid: int
    op: str
    row: Row
    unchanged: tuple[str, ...]
    old_key: Row | None
    old: Row | None


@dataclass(frozen=True, slots=True)
class Chunk:
    claim: Claim
    generation: int
    rows: list[Row]

    @property
    def at(self) -> At:
        return self.generation, self.claim.watermark_lsn

    def put(self, rows: dict[Key, Row], key: Key, row: Row) -> None:
        """Where the chunk read some columns alone, the others stay as they are, and a row that is not there lacks them:
        it is not made."""
        if self.claim.columns is None:
            rows[key] = row
        elif key in rows:
            rows[key] = {**rows[key], **row}

    def sees(self, change: Change) -> bool:
        """A promoted standby gives ids out again that stand in a snapshot: what is above the watermark is not seen."""
        if (change.generation, Lsn(change.commit_lsn)) >= self.at or change.generation < self.generation:
            return change.generation < self.generation
        point = self.claim.consistent_point
        seen_by_id = Snapshot.parse(self.claim.snapshot).sees
        return seen_by_id(change.xid) if point is None else change.commit_lsn < int(point)


@dataclass(frozen=True, slots=True)
class Swept:
    """`at` is the last of its backfill's watermarks. `keys` are those that it looked for, None if it was all."""

    sweep: Sweep
    at: At
    keys: frozenset[Key] | None

    def sees(self, change: Change) -> bool:
        if (change.generation, Lsn(change.commit_lsn)) >= self.at or change.generation < self.at[0]:
            return change.generation < self.at[0]
        return Snapshot.parse(self.sweep.snapshot).sees(change.xid)


# --- the rule ---------------------------------------------------------------------------------------------------------


def fold(
    key: Collection[str], rows: dict[Key, Row], changes: list[Change], chunks: list[Chunk], sweeps: list[Swept]
) -> dict[Key, Row]:
    """A table with a key: each chunk row is put under the first change of its key that its snapshot did not see."""

    def key_of(row: Row) -> Key:
        return tuple(row[k] for k in key)

    bases: dict[Key, list[tuple[Chunk, Row]]] = {}
    for chunk in sorted(chunks, key=lambda c: c.at):
        for row in chunk.rows:
            bases.setdefault(key_of(row), []).append((chunk, row))
    placed: dict[Key, Chunk] = {}
    for change in changes:
        is_truncate = change.op == "truncate"
        new = None if is_truncate else key_of(change.row)
        old = new if change.old_key is None else key_of(change.old_key)
        for touched in list(bases) if is_truncate else {new, old}:
            assert touched is not None
            if touched in placed and placed[touched].sees(change):
                raise AssertionError(f"a change of {touched} was visible, and one before it was not: {change}")
            while (of_key := bases.get(touched)) and not of_key[0][0].sees(change):
                placed[touched], row = of_key.pop(0)
                placed[touched].put(rows, touched, row)
        if is_truncate:
            rows.clear()
            continue
        assert new is not None
        assert old is not None
        before = rows.pop(old, dict.fromkeys(change.row, HOLE))
        if change.op != "delete":
            rows[new] = {c: before[c] if c in change.unchanged else v for c, v in change.row.items()}
    for touched, left in bases.items():
        for chunk, row in left:
            chunk.put(rows, touched, row)
    for sweep in sweeps:
        of_it = [c for c in chunks if c.claim.backfill == sweep.sweep.backfill or c.at > sweep.at]
        there = {key_of(row) for chunk in of_it for row in chunk.rows}
        there |= {key_of(c.row) for c in changes if c.op != "truncate" and not sweep.sees(c)}
        rows = {k: row for k, row in rows.items() if k in there or (sweep.keys is not None and k not in sweep.keys)}
    return rows


def lacking(key: Collection[str], rows: Collection[Key], changes: list[Change], chunk: Chunk) -> int:
    """How many rows of a chunk of some columns are not in the outcome, though no change behind the chunk touched
    them."""
    if chunk.claim.columns is None:
        return 0
    unseen = [change for change in changes if not chunk.sees(change)]
    if any(change.op == "truncate" for change in unseen):
        return 0
    touched = {tuple(row[k] for k in key) for c in unseen for row in (c.row, c.old_key) if row is not None}
    return len({tuple(row[k] for k in key) for row in chunk.rows}.difference(rows, touched))


def _unknown(key: Collection[str], rows: Collection[Row]) -> dict[Key, tuple[str, ...]]:
    """By key, the columns of each row whose value nobody knows."""
    unknown = {tuple(row[k] for k in key): tuple(c for c, v in row.items() if v is HOLE) for row in rows}
    return {of_row: columns for of_row, columns in unknown.items() if columns}


def _counted(unknown: dict[Key, tuple[str, ...]]) -> Holes:
    columns = Counter(column for of_row in unknown.values() for column in of_row)
    return Holes(dict(columns), tuple(tuple(map(str, key)) for key in unknown))


def fold_copies(changes: list[Change], chunks: list[Chunk]) -> Counter[tuple[Any, ...]]:
    """A table without a key: the newest chunk, and on it the changes that its snapshot did not see."""
    base = max(chunks, key=lambda c: c.at, default=None)
    copies: Counter[tuple[Any, ...]] = Counter()
    if base is not None:
        copies.update(tuple(row.values()) for row in base.rows)
    for change in changes:
        if base is not None and base.sees(change):
            continue
        if change.op == "truncate":
            copies.clear()
        if change.op in ("update", "delete"):
            assert change.old is not None
            copies[tuple(change.old.values())] -= 1
        if change.op in ("update", "insert"):
            filled = {c: (change.old or {})[c] if c in change.unchanged else v for c, v in change.row.items()}
            copies[tuple(filled.values())] += 1
    return copies


# --- what is registered -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Model:
    """The target of one pipeline. `invented` are rows that were in it from the beginning and never at the source."""

    environment: Environment
    invented: dict[str, list[Row]] = field(default_factory=dict)
    applied: dict[str, At] = field(default_factory=dict)
    _read: dict[Any, Any] = field(default_factory=dict)

    def apply(self, uri: str) -> None:
        """What the Spark application would do, and say."""
        plan = MergePlan.from_json(self._store.read(uri.removeprefix(f"{self.environment.config.lake}/")).decode())
        result = PlanResult(
            plan.plan, plan.pipeline, plan.generation, tuple(self._applied(t, plan.generation) for t in plan.tables)
        )
        path = layout.result_file(plan.pipeline, plan.plan)
        failpoints.reach("merge.before_result")
        self._store.write_atomic(path, result.to_json().encode())
        failpoints.reach("merge.after_result")

    def confirmable(self) -> Lsn:
        """R3's minimum by what the target has, whatever the ledger knows of it: over the tables that are neither parked
        nor deferred the start of the next batch that is not applied, and staged."""
        generation = self.environment.generation()
        assert generation is not None
        starts = [generation.staged_lsn]
        for table, row in self.environment.table_rows().items():
            if row.life.merge == "merging":
                at = self.applied.get(table, NOWHERE)
                waiting = [m for m, _ in self._manifests(table, None) if _end(m) > at]
                starts += [m.start_lsn if m.generation == generation.number else Lsn(0) for m in waiting][:1]
        return min(starts)

    def wrongs(self, names: Collection[str] | None = None) -> list[str]:
        """Everything in which the tables (default: all captured) differ from their source, marks included."""
        sentences = []
        captured = judge.captured(self.environment)
        for table in captured if names is None else names:
            row = captured[table]
            marked = judge.marked(row)
            sentences += [f"{table}: {marked}"] if marked else self._differences(table)
        return sentences

    def outcome(self, table: str, upto: At | None = None, without: Collection[str] = ()) -> list[Row]:
        """The table's rows when everything registered up to there is merged, less the chunks of some backfills."""
        schema = judge.schema_of(self.environment, table)
        if schema is None:
            return []  # it was empty ever since
        changes, chunks, sweeps = self._registered(table, upto)
        chunks = [chunk for chunk in chunks if chunk.claim.backfill not in without]
        sweeps = [swept for swept in sweeps if swept.sweep.backfill not in without]
        if schema.key:
            start = {tuple(row[k] for k in schema.key): row for row in self.invented.get(table, ())}
            return list(fold(schema.key, start, changes, chunks, sweeps).values())
        names = [column.name for column in schema.columns]
        return [dict(zip(names, copy, strict=True)) for copy in fold_copies(changes, chunks).elements()]

    def would_change(self, table: str, backfills: Collection[str]) -> bool:
        """Whether the chunks of these backfills say anything that is not said without them."""
        with_them, without = (Counter(map(repr, self.outcome(table, without=w))) for w in ((), backfills))
        return with_them != without

    # --- the sides of the comparison ----------------------------------------------------------------------------------

    def _differences(self, table: str) -> list[str]:
        schema = judge.schema_of(self.environment, table)
        fields = None if schema is None else _fields(schema)
        rows = self.outcome(table, self.applied.get(table, NOWHERE))
        comparison = compare_rows(
            source=self.environment.source,
            table=table,
            fields=fields,
            rows=lambda compared: [tuple(row[f.name] for f in compared) for row in rows],
        )
        examples = "; ".join(map(str, comparison.examples))
        return [] if comparison.equal else [f"{table}: {comparison.differences} differences: {examples}"]

    def _applied(self, planned: PlannedTable, generation: int) -> TableResult:
        self._require_order(planned, generation)
        self._require_evidence(planned, generation)
        failpoints.reach("merge.before_current")
        end = generation, planned.end_lsn
        before = self.applied.get(planned.table, NOWHERE)
        at = self.applied[planned.table] = max(end, before)
        failpoints.reach("merge.after_current")
        mine = [batch for batch in planned.batches if (generation, batch.end_lsn) > before]
        claims = [claim for batch in mine for claim in batch.claims]
        key = self._schema(planned.table).key
        rows = self.outcome(planned.table, at)
        changes, chunks, _ = self._registered(planned.table, end)
        there = {tuple(row[k] for k in key) for row in rows}
        lack = {chunk.claim.attempt: lacking(key, there, changes, chunk) for chunk in chunks}
        reached = at[1] if at[0] == generation else planned.end_lsn
        holes = _unknown(key, rows)
        brought = holes.items() - _unknown(key, self.outcome(planned.table, before)).items() if holes else ()
        without_holes = () if brought else {batch.end_lsn for batch in mine}
        is_counted = planned.had_holes or planned.may_have_new_holes(reached, without_holes)
        return TableResult(
            table=planned.table,
            history_lsn=reached,
            current_lsn=reached,
            holes=_counted(holes) if is_counted else None,
            chunks=tuple(
                ChunkResult(c.backfill, c.chunk, c.attempt, c.rows, 0, 0, 0, 0, 0, lacking=lack[c.attempt])
                for c in claims
            ),
            swept={sweep.backfill: 0 for batch in mine for sweep in batch.sweeps},
        )

    def _require_order(self, planned: PlannedTable, generation: int) -> None:
        """R5: the plan goes on where the table stands, or before it, and leaves out no batch of the table."""
        at = self.applied.get(planned.table, NOWHERE)
        if planned.after is not None and at < (generation, planned.after):
            raise AssertionError(f"{planned.table} stands at {at}, and the plan goes on at {planned.after}")
        brought = {(generation, batch.end_lsn) for batch in planned.batches}
        for manifest, _ in self._manifests(planned.table, (generation, planned.end_lsn)):
            if at < _end(manifest) not in brought:
                raise AssertionError(f"{planned.table}: the plan up to {planned.end_lsn} lacks {manifest.end_lsn}")

    def _require_evidence(self, planned: PlannedTable, generation: int) -> None:
        """Every older change that a chunk or sweep of the plan did not see is in the plan, and every chunk swept by."""
        brought = {file.path for batch in planned.evidence for file in batch.files}
        sweeps = [sweep for batch in planned.batches for sweep in batch.sweeps]
        chunks = [Chunk(claim, generation, []) for batch in planned.batches for claim in batch.claims]
        of_sweeps = [Swept(sweep, (generation, planned.end_lsn), None) for sweep in sweeps]
        claimed = {c.chunk for b in (*planned.evidence, *planned.batches) for c in b.claims}
        for manifest, mine in self._manifests(planned.table, (generation, planned.batches[0].start_lsn)):
            for file in mine.files:
                for change in self._changes(planned.table, manifest, file):
                    unseen = any(not c.sees(change) for c in chunks) or any(not s.sees(change) for s in of_sweeps)
                    if unseen and file.path not in brought:
                        raise AssertionError(f"{planned.table}: {file.path} is no evidence, and {change} was not seen")
            for claim in mine.claims:
                if claim.backfill in {sweep.backfill for sweep in sweeps} and claim.chunk not in claimed:
                    raise AssertionError(f"{planned.table}: chunk {claim.chunk} is swept by and not in the plan")

    # --- what is registered -------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return Store(self.environment.config.lake)

    def _schema(self, table: str) -> TableSchema:
        versions = self._versions(table)
        if not versions:
            raise AssertionError(f"{table} has no schema version yet")
        return versions[-1]

    def _versions(self, table: str) -> list[TableSchema]:
        with self.environment.ledger_connection() as connection:
            return tables.versions(connection, table)

    def _registered(self, table: str, upto: At | None) -> tuple[list[Change], list[Chunk], list[Swept]]:
        changes, chunks, sweeps = [], [], []
        for manifest, mine in self._manifests(table, upto):
            for file in mine.files:
                changes += self._changes(table, manifest, file)
            for claim in mine.claims:
                whole = claim.columns is None
                rows = [row for file in claim.files for row in self._chunk_rows(table, file, whole=whole)]
                if len(rows) != claim.rows:
                    raise AssertionError(
                        f"chunk {claim.chunk} of {table} has {len(rows)} rows, claimed are {claim.rows}"
                    )
                chunks.append(Chunk(claim, manifest.generation, rows))
            sweeps += mine.sweeps
        changes.sort(key=lambda change: (change.generation, change.commit_lsn, change.ordinal))
        return changes, chunks, [self._swept(table, sweep, chunks) for sweep in sweeps]

    def _swept(self, table: str, sweep: Sweep, chunks: list[Chunk]) -> Swept:
        schema = self._schema(table)
        fields = {field.name: field for field in _fields(schema)}
        keys = None
        if sweep.keys is not None:
            key = [fields[name] for name in schema.key]
            keys = frozenset(tuple(map(delta_files.from_text, texts, key)) for texts in sweep.keys)
        return Swept(sweep, max(chunk.at for chunk in chunks if chunk.claim.backfill == sweep.backfill), keys)

    def _manifests(self, table: str, upto: At | None) -> Iterator[tuple[BatchManifest, TableChanges]]:
        with self.environment.ledger_connection() as connection:
            numbers = range(1, generations.required(connection).number + 1)
            registered = [batch for number in numbers for batch in batches.after(connection, number, Lsn(0))]
        for batch in registered:
            manifest = self._manifest(batch.manifest)
            if upto is None or _end(manifest) <= upto:
                yield from ((manifest, mine) for mine in manifest.tables if mine.table == table)

    def _manifest(self, path: str) -> BatchManifest:
        if path not in self._read:
            self._read[path] = BatchManifest.from_json(self._store.read(path).decode())
        return self._read[path]

    def _changes(self, table: str, manifest: BatchManifest, file: StagedFile) -> list[Change]:
        newest = self._schema(table)
        seen = file.path, newest.version
        if seen not in self._read:
            version = self._version(table, file)
            staged = read_table(self._store, file)
            rows, old_keys, olds = (
                [None if row is None else _told(row, version, newest, whole) for row in of_staged]
                for of_staged, whole in (
                    (_rows(staged, version), True),
                    (_struct(staged, "_old_key", version), False),
                    (_struct(staged, "_old", version), True),
                )
            )
            names = newest.other_names(version)
            facts = staged.select(["_commit_lsn", "_ordinal", "_xid", "_op", "_unchanged"]).to_pylist()
            self._read[seen] = [
                Change(
                    manifest.generation,
                    *(fact[name] for name in ("_commit_lsn", "_ordinal", "_xid", "_op")),  # type: ignore[call-arg]
                    row or {},
                    tuple(names.get(name, name) for name in fact["_unchanged"] or ()),
                    old_key,
                    old,
                )
                for fact, row, old_key, old in zip(facts, rows, old_keys, olds, strict=True)
            ]
        return self._read[seen]

    def _chunk_rows(self, table: str, file: StagedFile, *, whole: bool) -> list[Row]:
        newest = self._schema(table)
        seen = file.path, newest.version
        if seen not in self._read:
            version = self._version(table, file)
            rows = _rows(read_table(self._store, file), version)
            self._read[seen] = [_told(row, version, newest, whole) for row in rows]
        return self._read[seen]

    def _version(self, table: str, file: StagedFile) -> TableSchema:
        return next(version for version in self._versions(table) if version.version == file.schema_version)


def stand_in(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model that merges in this process in Spark's place."""
    model = Model(environment)
    environment.spark = lambda: None  # type: ignore[assignment, return-value]
    monkeypatch.setattr(stages, "apply", lambda _, uri: model.apply(uri))
    return model


def _end(manifest: BatchManifest) -> At:
    return manifest.generation, manifest.end_lsn


def _told(row: Row, version: TableSchema, newest: TableSchema, whole: bool) -> Row:
    """A row of a version in the columns of the newest one: of the columns that it has, or of all if it is `whole`."""
    told: Row = {}
    for column, shown in zip(newest.columns, _fields(newest), strict=True):
        was = newest.column_in(version, column)
        if was is not None and was.name in row:
            told[column.name] = row[was.name]
        elif whole:
            told[column.name] = None if column.missing is None else delta_files.from_text(column.missing, shown)
    return told


def _fields(schema: TableSchema) -> list[T.StructField]:
    arrow = staged_schema(schema)
    return [T.StructField(c.name, from_arrow_type(arrow.field(c.name).type)) for c in schema.columns]


def _rows(table: pa.Table, schema: TableSchema) -> list[Row]:
    fields = [field for field in _fields(schema) if field.name in table.column_names]
    columns = [delta_files.values(table, field) for field in fields]
    return [dict(zip([f.name for f in fields], row, strict=True)) for row in zip(*columns, strict=True)]


def _struct(table: pa.Table, name: str, schema: TableSchema) -> list[Row | None]:
    """The rows within a column of structs, None where it is NULL or not there."""
    if name not in table.column_names:
        return [None] * table.num_rows
    column = table.column(name).combine_chunks()
    inside = pa.table(dict(zip([f.name for f in column.type], column.flatten(), strict=True)))
    present = column.is_valid().to_pylist()
    return [row if there else None for row, there in zip(_rows(inside, schema), present, strict=True)]
