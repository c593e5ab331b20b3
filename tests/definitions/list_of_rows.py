"""Merges plans into lists of rows, in the place of Spark: what the Delta tables would hold.

    plan ──► shape (the product's own functions) ──► staged changes ──► chunks by the rule of R7 ──► rows, result.json

Which columns a table has, what they are called and which column of the source each is, is decided by the functions that
a driver calls, and refused where a driver refuses it (TargetDiffers). What the rows hold is worked out here, by no code
of the merge. A value whose base is not known is `HOLE`.

Each plan is applied to the rows that the plans before left, as Delta's are: what a later plan knows better does not
mend what an earlier one wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from tests.simulation.chunk_model import HOLE, Change, Chunk, Swept, fold, fold_copies, lacking
from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.capture.merge_planning import ingest
from tidemark.errors import TargetAhead, TargetDiffers, TidemarkError
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.formats.merge_result import ChunkResult, Holes, PlanResult, TableResult
from tidemark.schema.delta_types import arrow_type, widens
from tidemark.schema.renamed_columns import NamesAhead
from tidemark.schema.table import TableSchema
from tidemark.schema.values import convert
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.spark import table_columns
from tidemark.target.spark.table_shape import PlannedShape

Row = dict[str, Any]
Key = tuple[Any, ...]


def text_of(value: Any) -> str | None:
    """A value as both sides of a comparison spell it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return str(list(value) if isinstance(value, tuple) else value)


@dataclass
class Target:
    """A history and a current: `fields` say which columns of the source they are, as in Delta. A table without a key
    has its rows by their place."""

    lake: str
    fields: list[StructField] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    had: set[tuple[int, int]] = field(default_factory=set)  # relation, number: what Delta's properties keep

    def schema(self) -> StructType:
        return StructType(self.fields)

    def apply(self, plan: MergePlan, planned: PlannedTable) -> TableResult:
        """Raises what a driver would."""
        pinned = cast(PinnedTable, self)
        shape = PlannedShape.settled(cast(Any, None), plan, planned, pinned)
        self._take_shape(planned, shape.schema)
        versions = {one.version: one for one in shape.schemas}
        changes = _Reading(self, planned, plan.generation, shape.schema, versions)
        holes = None
        if shape.schema.key:
            self._apply_by_key(changes)
            holes = _holes(shape.schema.key, self.rows)
        elif shape.schema.is_multiset:
            self._apply_by_rows(changes)
        chunks = [chunk for chunk in changes.chunks if chunk.claim.attempt in changes.claimed]
        return TableResult(
            planned.table,
            planned.end_lsn,
            planned.end_lsn,
            holes=holes,
            chunks=tuple(
                ChunkResult(
                    c.claim.backfill, c.claim.chunk, c.claim.attempt, c.claim.rows, 0, 0, 0, 0, 0,
                    lacking=changes.lacking(c, self.rows),
                )
                for c in chunks
            ),
            swept={sweep.backfill: 0 for batch in planned.batches for sweep in batch.sweeps},
        )  # fmt: skip

    # --- its shape ----------------------------------------------------------------------------------------------------

    def _take_shape(self, planned: PlannedTable, schema: TableSchema) -> None:
        exists = bool(self.fields)
        if exists:
            try:
                names = table_columns.target_naming(cast(PinnedTable, self), schema, planned.called)
            except NamesAhead as name:
                raise TargetAhead(step="current", table=planned.table, column=str(name)) from None
            self._rename(names.names)
            self._number(schema.relation_oid, names.numbers)
        types = {f.name: f.dataType for f in self.fields}
        for column in schema.columns:
            wanted = from_arrow_type(arrow_type(column.target))
            told = {table_columns.SOURCE: {"relation": schema.relation_oid, "attnum": column.attnum}}
            if column.name not in types:
                was_had = column.attnum and (schema.relation_oid, column.attnum) in self.had
                if exists and (column.name in schema.key or (was_had and column.name not in schema.dropped)):
                    raise TargetDiffers(step="current", table=planned.table, columns=column.name)
                self.fields.append(StructField(column.name, wanted, True, told if column.attnum else {}))
                default = _default(column.missing, column.target)
                for row in self.rows:
                    row[column.name] = default
            elif types[column.name] != wanted:
                if not widens(types[column.name].simpleString(), wanted.simpleString()):
                    raise TargetDiffers(step="current", table=planned.table, columns=column.name)
                at = next(n for n, f in enumerate(self.fields) if f.name == column.name)
                self.fields[at] = StructField(column.name, wanted, True, self.fields[at].metadata)
        told_now = table_columns.source_numbers(cast(PinnedTable, self), schema.relation_oid)
        self.had |= {(schema.relation_oid, number) for number in told_now.values()}

    def _rename(self, names: dict[str, str]) -> None:
        self.fields = [StructField(names.get(f.name, f.name), f.dataType, True, f.metadata) for f in self.fields]
        self.rows = [{names.get(name, name): value for name, value in row.items()} for row in self.rows]

    def _number(self, relation: int, numbers: dict[str, int]) -> None:
        said = {name: {table_columns.SOURCE: {"relation": relation, "attnum": n}} for name, n in numbers.items()}
        self.fields = [StructField(f.name, f.dataType, True, said.get(f.name, {})) for f in self.fields]

    # --- its rows -----------------------------------------------------------------------------------------------------

    def _apply_by_key(self, reading: _Reading) -> None:
        key = reading.schema.key
        before = {_key_of(key, row): row for row in self.rows}
        rows = fold(key, dict(before), reading.changes, [], [])
        if reading.chunks:
            rows = _under_chunks(key, rows, reading)
        for swept in reading.sweeps:
            rows = reading.swept(swept, rows)
        names = [f.name for f in self.fields]
        self.rows = [{name: row.get(name) for name in names} for row in rows.values()]

    def _apply_by_rows(self, reading: _Reading) -> None:
        """What the source has no more says nothing of which row a change is of."""
        names = [c.name for c in reading.schema.columns if c.name not in reading.schema.dropped]
        dropped = [f.name for f in self.fields if f.name not in names]
        if reading.chunks:
            everything = sorted([*reading.evidence, *reading.changes], key=_order)
            copies = fold_copies([_only(change, names) for change in everything], _only_rows(reading.chunks, names))
            self.rows = [_whole(names, copy, dropped) for copy in copies.elements()]
            return
        for change in reading.changes:
            if change.op == "truncate":
                self.rows = []
            if change.op in ("update", "delete"):
                self._remove(change.old or {}, names)
            if change.op in ("update", "insert"):
                old = change.old or {}
                self.rows.append(
                    {f.name: None for f in self.fields}
                    | {name: old.get(name) if name in change.unchanged else v for name, v in change.row.items()}
                )

    def _remove(self, old: Row, names: Sequence[str]) -> None:
        wanted = [text_of(old.get(name)) for name in names]
        there = next((row for row in self.rows if [text_of(row[name]) for name in names] == wanted), None)
        if there is not None:  # else the row is one that only a chunk brings
            self.rows.remove(there)

    # --- for a comparison ---------------------------------------------------------------------------------------------

    def field_of(self, number: int, name: str) -> str | None:
        """Which field is this column of the source."""
        told = {f.name: f.metadata.get(table_columns.SOURCE, {}).get("attnum", 0) for f in self.fields}
        by_number = [field_name for field_name, told_number in told.items() if told_number == number]
        if by_number:
            return by_number[0]
        return name if told.get(name) == 0 else None

    def values(self, names: Iterable[str]) -> Counter[tuple[str | None, ...]]:
        wanted = list(names)
        return Counter(tuple(text_of(row[name]) for name in wanted) for row in self.rows)


class _Reading:
    """What a plan names, in the names and with the columns of the shape that it leads to."""

    def __init__(
        self,
        target: Target,
        planned: PlannedTable,
        generation: int,
        schema: TableSchema,
        versions: dict[int, TableSchema],
    ) -> None:
        self.schema, self._versions, self._generation = schema, versions, generation
        self._lake = target.lake
        self.changes = self._changes(planned.batches)
        self.evidence = self._changes(planned.evidence)
        self.claimed = {claim.attempt for batch in planned.batches for claim in batch.claims}
        claims = [claim for batch in (*planned.evidence, *planned.batches) for claim in batch.claims]
        self.chunks = [Chunk(claim, generation, self._chunk_rows(claim)) for claim in claims]
        self.sweeps = [self._sweep(sweep) for batch in planned.batches for sweep in batch.sweeps]

    def _changes(self, batches: Iterable[PlannedBatch]) -> list[Change]:
        changes: list[Change] = []
        for batch in batches:
            for file in batch.files:
                version = self._versions[file.schema_version]
                own = self.schema.other_names(version)
                for row in self._read(file.path):
                    changes.append(
                        Change(
                            self._generation, row["_commit_lsn"], row["_ordinal"], row["_xid"], row["_op"],
                            {} if row["_op"] == "truncate" else self._told(row, version, whole=row["_op"] != "delete"),
                            tuple(own.get(name, name) for name in row["_unchanged"] or ()),
                            self._old_key(row.get("_old_key"), version),
                            None if row.get("_old") is None else self._told(row["_old"], version, whole=True),
                        )
                    )  # fmt: skip
        return sorted(changes, key=_order)

    def _read(self, path: str) -> list[Row]:
        rows: list[Row] = pq.read_table(f"{self._lake}/{path}").to_pylist()
        return rows

    def _chunk_rows(self, claim: Any) -> list[Row]:
        rows: list[Row] = []
        for file in claim.files:
            version = self._versions[file.schema_version]
            rows += [self._told(row, version, whole=claim.columns is None) for row in self._read(file.path)]
        return rows

    def _told(self, values: Row, version: TableSchema, *, whole: bool) -> Row:
        """As `staged_changes` reads a file of that version."""
        row = {}
        for column in self.schema.columns:
            own = self.schema.column_in(version, column)
            if own is None:
                if whole:
                    row[column.name] = _default(column.missing, column.target)
            elif own.name in values:
                value = _cast(values[own.name], own.target, column.target)
                row[column.name] = tuple(value) if isinstance(value, list) else value  # copies of rows are counted
        return row

    def _old_key(self, old: Row | None, version: TableSchema) -> Row | None:
        """By place, as a driver reads it."""
        if old is None:
            return None
        return {now: old[was] for was, now in zip(version.key, self.schema.key, strict=True)}

    def _sweep(self, sweep: Any) -> Swept:
        assert sweep.keys is None
        assert sweep.parts is None
        at = max(chunk.at for chunk in self.chunks if chunk.claim.backfill == sweep.backfill)
        return Swept(sweep, at, None)

    def swept(self, swept: Swept, rows: dict[Key, Row]) -> dict[Key, Row]:
        chunks = [c for c in self.chunks if c.claim.backfill == swept.sweep.backfill or c.at > swept.at]
        there = {_key_of(self.schema.key, row) for chunk in chunks for row in chunk.rows}
        unseen = [c for c in (*self.evidence, *self.changes) if c.op != "truncate" and not swept.sees(c)]
        there |= {_key_of(self.schema.key, change.row) for change in unseen}
        return {key: row for key, row in rows.items() if key in there}

    def lacking(self, chunk: Chunk, rows: list[Row]) -> int:
        key = self.schema.key
        if not key:
            return 0
        changes = sorted([*self.evidence, *self.changes], key=_order)
        return lacking(key, {_key_of(key, row) for row in rows}, changes, chunk)


def _under_chunks(key: Collection[str], rows: dict[Key, Row], reading: _Reading) -> dict[Key, Row]:
    """The rows with what the chunks say of them: each chunk row under the changes that it did not see."""
    names = [column.name for column in reading.schema.columns]
    holed = [Chunk(c.claim, c.generation, [dict.fromkeys(names, HOLE) | row for row in c.rows]) for c in reading.chunks]
    partial = {_key_of(key, row) for c in reading.chunks if c.claim.columns is not None for row in c.rows}
    everything = sorted([*reading.evidence, *reading.changes], key=_order)
    whole = [Chunk(replaced.claim, replaced.generation, replaced.rows) for replaced in holed]
    seen = fold(key, {}, everything, [_as_whole(chunk) for chunk in whole], [])
    outcome = dict(rows)
    for one, row in seen.items():
        if one in outcome:
            outcome[one] = outcome[one] | {name: value for name, value in row.items() if value is not HOLE}
        elif one not in partial or HOLE not in row.values():
            outcome[one] = row
    return outcome


def _as_whole(chunk: Chunk) -> Chunk:
    from msgspec.structs import replace

    return Chunk(replace(chunk.claim, columns=None), chunk.generation, chunk.rows)


def _only(change: Change, names: Sequence[str]) -> Change:
    row = {name: change.row.get(name) for name in names}
    old = None if change.old is None else {name: change.old.get(name) for name in names}
    unchanged = tuple(name for name in change.unchanged if name in names)
    return Change(
        change.generation, change.commit_lsn, change.ordinal, change.xid, change.op, row, unchanged, None, old
    )


def _only_rows(chunks: Iterable[Chunk], names: Sequence[str]) -> list[Chunk]:
    return [Chunk(c.claim, c.generation, [{name: row.get(name) for name in names} for row in c.rows]) for c in chunks]


def _whole(names: Sequence[str], copy: tuple[Any, ...], dropped: Iterable[str]) -> Row:
    return dict(zip(names, copy, strict=True)) | dict.fromkeys(dropped)


def _order(change: Change) -> tuple[int, int, int]:
    return change.generation, change.commit_lsn, change.ordinal


def _key_of(key: Collection[str], row: Row) -> Key:
    return tuple(row[name] for name in key)


def _holes(key: Sequence[str], rows: Iterable[Row]) -> Holes:
    lacking_rows = {_key_of(key, r): [c for c, v in r.items() if v is HOLE] for r in rows}
    columns = Counter(column for names in lacking_rows.values() for column in names)
    return Holes(dict(columns), tuple(tuple(map(str, k)) for k, names in lacking_rows.items() if names))


def _default(missing: str | None, target: str) -> Any:
    return None if missing is None else convert(pa.array([missing], pa.string()), target).values[0].as_py()


def _cast(value: Any, was: str, target: str) -> Any:
    """As Spark casts a value of a file to the type that the target has by now."""
    if value is None or was == target or value is HOLE:
        return value
    return pa.scalar(value, arrow_type(was)).cast(arrow_type(target)).as_py()


@dataclass
class Lake:
    """All tables of a pipeline, by id."""

    pipeline: Pipeline
    targets: dict[str, Target] = field(default_factory=dict)
    plans: int = 0

    def merge(self) -> dict[str, str]:
        """What a run's merge does; by table, the kind of the error that ended it."""
        self.plans += 1
        plan = make_plan(self.pipeline.task("merge", f"merge-{self.plans}"))
        if plan is None:
            return {}
        results = tuple(self._result(plan, planned) for planned in plan.tables)
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, results, noted=plan.level is not None)
        self.pipeline.store.write_atomic(layout.result_file(plan.pipeline, plan.plan), result.to_json().encode())
        ingest(self.pipeline.task())
        return {r.table: r.error.kind for r in results if r.error is not None}

    def target(self, table: str) -> Target | None:
        """None where nothing was merged yet."""
        return self.targets.get(table)

    def _result(self, plan: MergePlan, planned: PlannedTable) -> TableResult:
        target = self.targets.setdefault(planned.table, Target(str(self.pipeline.config.lake)))
        try:
            return target.apply(plan, planned)
        except TidemarkError as error:
            return TableResult(planned.table, None, None, error=error.record())
