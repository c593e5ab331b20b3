"""Computes what a first load's chunk rows add under changes of the same keys: `visibility`'s rule, without Spark.

    masked rows of chunks ───┐
    changes of their keys ───┼─► a verdict per row ─► `read` and `sweep` rows ─► with the plan's changes: `PlainChanges`
    current's rows of them ──┘

It takes only changes that contain their key's whole row. None moves a key, truncates, or leaves a value unsent. The
changes of a key are then a list in R1 order. The chunk's snapshot saw the beginning of the list:

    older, seen ─ older, unseen ─ the plan's, seen ─ the plan's, unseen       (one of the middle two is empty)
                  └─ the newest below the watermark, if of the plan: the row by the stream
                     else the newest: the row by the chunk, which current has already if current is right

`visibility` has the same rule as a Spark plan; a change of one is a change of both. tests/target/test_whole_chunks.py
compares the two, row by row and count by count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.formats.manifest import Claim
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.names import ROW_HOLES
from tidemark.target.chunks.chunk_rows import TouchedRows, moment_of
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.driver import arrow_columns, driver_memory
from tidemark.target.driver.arrow_columns import Key
from tidemark.target.driver.change_reader import change_shape, in_order, read_changes
from tidemark.target.driver.driver_fold import fold_changes, newest_changes
from tidemark.target.driver.driver_merge import DriverMerge
from tidemark.target.driver.history_files import OnFailure
from tidemark.target.driver.key_set import KeySet
from tidemark.target.merge_choice import MANY, DriverLimits
from tidemark.target.spark import visibility
from tidemark.target.spark.visibility import INSERTED, OVERTAKEN, REPAIRED, UNCHANGED

Stored = tuple[Any, ...]


def folded(load: FirstLoad, limits: DriverLimits, on_failure: OnFailure) -> DriverMerge:
    """The changes that come with the chunks, and what the rows of chunks that they touch add. Raises Declined."""
    if limits.is_alone:
        driver_memory.reserve()
    try:
        fold = _ChunkFold(load.touched(), limits.decoded_bytes)
        added, results = fold.added()
        newest = newest_changes(in_order(pa.concat_tables([fold.staged, added])), fold.schema)
        changes = fold_changes(newest, fold.schema, load.target)
    except BaseException:
        if limits.is_alone:
            driver_memory.free()
        raise
    return DriverMerge(
        table=load.table,
        batches=load.coming.batches,
        target=load.target,
        folded=changes,
        on_failure=on_failure,
        load=load,
        has_memory=limits.is_alone,
        keeps_files=limits.is_alone,
        chunk_results=results,
    )


def of_touched(touched: TouchedRows) -> tuple[ChunkResult, ...] | None:
    """What becomes of rows of chunks that add nothing: a result per chunk; None if one of them would add one. Raises
    what reading raises, and Declined."""
    judged, verdicts = _ChunkFold(touched, MANY.decoded_bytes).verdicts()
    return None if {INSERTED, REPAIRED} & set(verdicts) else _results(judged, verdicts)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a key that a chunk has: its place in R1 order, whether it was applied before, and its number among
    the rows of `_ChunkFold.rows`."""

    commit_lsn: int
    ordinal: int
    xid: int
    is_older: bool
    is_delete: bool
    row: int

    @property
    def place(self) -> tuple[int, int]:
        return self.commit_lsn, self.ordinal

    def is_seen_by(self, claim: Claim) -> bool:
        return visibility.sees(claim, self.xid, self.commit_lsn)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A chunk's row, by what the snapshot and the changes say of it: `row` is what it has become, a delete too, and
    `stream` what the plan says of the key just below the watermark, None where that is what current has."""

    claim: Claim
    key: Key
    row: int
    is_delete: bool
    stream: _Change | None
    is_lost: bool


class _ChunkFold:
    """`rows` are the masked rows of the chunks, and behind them the changes of their keys."""

    def __init__(self, touched: TouchedRows, most_bytes: int) -> None:
        schema = touched.table.schema
        self.most_bytes = most_bytes  # of the changes, decoded
        self.of = touched
        self.schema = schema
        self.names = [c.name for c in schema.columns]
        self.shape = change_shape(schema)
        self.reads = self._reads()
        self.claims = [claim for claim, rows in touched.rows for _ in range(rows.num_rows)]
        self.staged = self._changes_of(touched.coming.batches)
        keys = KeySet([self.shape.field(k).type for k in schema.key], [[self.reads[k] for k in schema.key]])
        older = self._changes_of(touched.coming.evidence, keys)
        own = self.staged.filter(keys.holds([self.staged[k] for k in schema.key]))
        self.rows = pa.concat_tables([self.reads, older, own]).combine_chunks()
        self.changes_of = self._changes_by_key(older.num_rows)

    def added(self) -> tuple[pa.Table, tuple[ChunkResult, ...]]:
        """The `read` and `sweep` rows that the chunks add to the changes, and what became of the chunks' rows."""
        judged, verdicts = self.verdicts()
        added = [each for each, verdict in zip(judged, verdicts, strict=True) if verdict in (INSERTED, REPAIRED)]
        return self._added(added), _results(judged, verdicts)

    def verdicts(self) -> tuple[list[_Judged], list[str]]:
        judged = [self._judged(claim, key, row) for row, (claim, key) in enumerate(self._keyed_reads())]
        return judged, self._verdicts(judged)

    # --- what there is --------------------------------------------------------------------------------------------

    def _reads(self) -> pa.Table:
        """In the shape of changes, as far as they say anything."""
        pieces = [arrow_columns.in_shape(rows, self.shape) for _, rows in self.of.rows]
        return pa.concat_tables([self.shape.empty_table(), *pieces])

    def _changes_of(self, batches: Sequence[PlannedBatch], only: KeySet | None = None) -> pa.Table:
        files = [f for b in batches for f in b.files]
        return read_changes(self.of.table, files, self.most_bytes, only=only)

    def _keyed_reads(self) -> Iterator[tuple[Claim, Key]]:
        return zip(self.claims, arrow_columns.keys_of([self.reads[k] for k in self.schema.key]), strict=True)

    def _changes_by_key(self, older: int) -> dict[Key, list[_Change]]:
        behind = self.reads.num_rows
        changes = self.rows.slice(behind)
        facts = [changes[name].to_pylist() for name in ("_commit_lsn", "_ordinal", "_xid", "_op")]
        by_key: dict[Key, list[_Change]] = {}
        for n, (key, lsn, ordinal, xid, op) in enumerate(
            zip(arrow_columns.keys_of([changes[k] for k in self.schema.key]), *facts, strict=True)
        ):
            by_key.setdefault(key, []).append(_Change(lsn, ordinal, xid, n < older, op == "delete", behind + n))
        return by_key

    # --- what the rows come to ------------------------------------------------------------------------------------

    def _judged(self, claim: Claim, key: Key, read: int) -> _Judged:
        changes = self.changes_of.get(key, [])
        unseen = [c for c in changes if not c.is_seen_by(claim)]
        before = [c for c in unseen if c.is_older]
        below = [c for c in changes if not c.is_older and c.commit_lsn < int(claim.watermark_lsn)]
        stream = max(below, key=lambda c: c.place, default=None)
        is_lost = any(c.commit_lsn < int(claim.low_lsn) for c in unseen)
        if stream is not None or not before:
            return _Judged(claim, key, read, False, stream, is_lost)
        newest = max(before, key=lambda c: c.place)
        return _Judged(claim, key, newest.row, newest.is_delete, None, is_lost)

    def _verdicts(self, judged: Sequence[_Judged]) -> list[str]:
        forms = self._stored([j.row for j in judged], [j.stream.row for j in judged if j.stream is not None])
        there = self._there()
        verdicts = []
        for number, each in enumerate(judged):
            stream = each.stream
            if stream is not None and not stream.is_seen_by(each.claim):
                verdicts.append(OVERTAKEN)
                continue
            is_present = number in there if stream is None else not stream.is_delete
            opponent = there.get(number) if stream is None else forms[stream.row]
            if each.is_delete:
                verdicts.append(REPAIRED if is_present else OVERTAKEN)
            elif not is_present:
                verdicts.append(INSERTED)
            else:
                verdicts.append(UNCHANGED if forms[each.row] == opponent else REPAIRED)
        return verdicts

    def _stored(self, *rows: Sequence[int]) -> dict[int, Stored]:
        numbers = sorted({row for some in rows for row in some})
        return dict(zip(numbers, stored(self.rows.take(pa.array(numbers, pa.int64())), self.names), strict=True))

    def _there(self) -> dict[int, Stored | None]:
        """What current has of the keys of the chunks' rows, by these rows' numbers; None is a row that lacks a value,
        and so is no other's like."""
        target = self.of.target
        found = target.find([self.reads[k] for k in self.schema.key])
        forms: dict[int, Stored | None] = {}
        for number in np.unique(found.files).tolist():
            chosen = np.flatnonzero(found.files == number)
            chosen = chosen[np.argsort(found.rows[chosen])]
            picked = target.rows(target.files[number], found.rows[chosen].tolist(), self.names)
            holes = picked[ROW_HOLES].to_pylist()
            reads = found.keys[chosen].tolist()
            for read, form, lacks in zip(reads, stored(picked, self.names), holes, strict=True):
                forms[read] = None if lacks else form
        return forms

    # --- what is written of it ------------------------------------------------------------------------------------

    def _added(self, added: Sequence[_Judged]) -> pa.Table:
        """Each at its chunk's watermark; of a row that goes the key alone."""
        rows = self.rows.take(pa.array([each.row for each in added], pa.int64()))
        stays = pa.array([not each.is_delete for each in added], pa.bool_())
        facts: dict[str, Sequence[Any]] = {
            "_generation": [self.of.coming.generation] * len(added),
            "_commit_lsn": [int(each.claim.watermark_lsn) for each in added],
            "_ordinal": [0] * len(added),
            "_xid": [None] * len(added),
            "_committed_at": [moment_of(each.claim) for each in added],
            "_op": ["sweep" if each.is_delete else "read" for each in added],
            "_unchanged": [None] * len(added),
        }
        columns = []
        for f in self.shape:
            if f.name in facts:
                columns.append(pa.array(facts[f.name], f.type))
            elif f.name in self.schema.key:
                columns.append(rows[f.name].combine_chunks())
            else:
                columns.append(_where(stays, rows[f.name].combine_chunks()))
        return pa.table(columns, schema=self.shape)


def _results(judged: Sequence[_Judged], verdicts: Sequence[str]) -> tuple[ChunkResult, ...]:
    counts: dict[int, Counter[str]] = {}
    for each, verdict in zip(judged, verdicts, strict=True):
        of_claim = counts.setdefault(id(each.claim), Counter())
        of_claim[verdict] += 1
        of_claim["lost"] += each.is_lost
    claims = {id(each.claim): each.claim for each in judged}
    return tuple(
        ChunkResult(
            backfill=claim.backfill,
            chunk=claim.chunk,
            attempt=claim.attempt,
            read=sum(counts[number][verdict] for verdict in (INSERTED, REPAIRED, UNCHANGED, OVERTAKEN)),
            inserted=counts[number][INSERTED],
            repaired=counts[number][REPAIRED],
            unchanged=counts[number][UNCHANGED],
            overtaken=counts[number][OVERTAKEN],
            lost_by_window=counts[number]["lost"],
        )
        for number, claim in claims.items()
    )


def _where(stays: pa.Array, values: pa.Array) -> pa.Array:
    """NULL where the row does not stay."""
    numbers = pc.if_else(stays, pa.array(np.arange(len(values))), pa.scalar(None, pa.int64()))
    return values.take(numbers)


def stored(table: pa.Table, names: Sequence[str]) -> list[Stored]:
    """Per row a value that is equal to another exactly if the two are stored alike (`fold.stored_form`)."""
    columns = []
    for name in names:
        column = arrow_columns.comparable(table[name])
        values = column.to_pylist()
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            values = [_form(value, is_map=pa.types.is_map(column.type)) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def _form(value: Any, *, is_map: bool = False) -> Any:
    """Of floating point -0.0 is not 0.0, and NaN is NaN; a map has no order."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        forms = [_form(each) for each in value]
        return tuple(sorted(forms) if is_map else forms)
    if isinstance(value, tuple):
        return tuple(_form(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _form(each)) for name, each in value.items())
    return value
