"""Computes the rows that chunks add for keys that changes have too: the rule of `visibility`, without Spark.

    masked rows of chunks ───┐
    changes of their keys ───┼─► a verdict per row ─► `read` and `sweep` rows ─► with the plan's changes: `DriverMerge`
    current's rows of them ──┘

All changes must contain their key's whole row: no change moves a key, truncates, or leaves a value unsent. The changes
of a key are then a list in R1 order. The chunk's snapshot saw the beginning of the list:

    older, seen ─ older, unseen ─ the plan's, seen ─ the plan's, unseen       (one of the middle two is empty)
                  └─ the plan's newest change below the watermark, if any: the row by the stream
                     else the newest older change: the row by the chunk, which current already has if it is right

`visibility` has the same rule as a Spark plan; change both together. tests/target/test_chunks_as_by_spark.py compares
the two, row by row and count by count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.formats.manifest import Claim
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.names import ROW_HOLES
from tidemark.target.chunks.chunk_input import TouchedRows, watermark_time
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.driver import arrow_columns, driver_memory
from tidemark.target.driver.arrow_columns import Key
from tidemark.target.driver.change_reader import change_shape, in_order, read_changes
from tidemark.target.driver.driver_fold import fold_changes, newest_changes
from tidemark.target.driver.driver_merge import DriverMerge
from tidemark.target.driver.key_set import KeySet
from tidemark.target.merge_choice import FEW, MANY, Declined, DriverLimits
from tidemark.target.spark import visibility
from tidemark.target.spark.visibility import INSERTED, OVERTAKEN, REPAIRED, UNCHANGED
from tidemark.wording import counted

MAX_TOUCHED_CHANGES: Final = 500_000  # of the keys of chunk rows, older ones too; Python decides about each

Stored = tuple[Any, ...]


def fold_with_chunks(load: FirstLoad, limits: DriverLimits) -> DriverMerge:
    """Fold the changes of the first load's batches, and the chunk rows whose keys they have. Raises Declined.

    Many such rows take as much memory as many changes, so only one table at a time folds them.
    """
    is_alone = limits.is_alone or load.masked > FEW.rows
    if is_alone:
        driver_memory.reserve(driver_memory.WAIT_S)
    try:
        fold = _ChunkFold(load.touched(), limits.decoded_bytes)
        added, results = fold.added()
        newest = newest_changes(in_order(pa.concat_tables([fold.staged, added])), fold.schema)
        changes = fold_changes(newest, fold.schema, load.target)
    except BaseException:
        if is_alone:
            driver_memory.free()
        raise
    return DriverMerge(
        table=load.table,
        batches=load.next_batches.batches,
        target=load.target,
        folded=changes,
        load=load,
        has_memory=is_alone,
        keeps_files=limits.is_alone,
        chunk_results=results,
    )


def touched_results(touched: TouchedRows) -> tuple[ChunkResult, ...] | None:
    """One result per chunk if these chunk rows add nothing to the changes; None if a row would add something.

    Raises Declined, and the errors of reading staged files.
    """
    judged, verdicts = _ChunkFold(touched, MANY.decoded_bytes).verdicts()
    return None if {INSERTED, REPAIRED} & set(verdicts) else _results(judged, verdicts)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a key that a chunk has.

    `commit_lsn` and `ordinal` are its place in R1 order. `is_older`: an earlier plan applied it. `row` is its number in
    `_ChunkFold.rows`.
    """

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
class _JudgedRow:
    """A chunk's row under the changes that its snapshot did not see.

    `row` is the row's number in `_ChunkFold.rows` after older changes, which may be a delete. `stream` is the plan's
    newest change of the key below the watermark, None if the plan has none; then current has the row. `is_lost`: a
    change that the snapshot did not see was in the WAL before the low watermark.
    """

    claim: Claim
    key: Key
    row: int
    is_delete: bool
    stream: _Change | None
    is_lost: bool


class _ChunkFold:
    """Decides about the masked rows of some chunks. `rows` has these rows first, then the changes of their keys."""

    def __init__(self, touched: TouchedRows, most_bytes: int) -> None:
        schema = touched.table.schema
        self.most_bytes = most_bytes  # of the changes, decoded
        self.touched = touched
        self.schema = schema
        self.names = [c.name for c in schema.columns]
        self.shape = change_shape(schema)
        self.reads = self._reads()
        self.claims = [claim for claim, rows in touched.rows for _ in range(rows.num_rows)]
        self.staged = self._changes_of(touched.next_batches.batches)
        keys = KeySet([self.shape.field(k).type for k in schema.key], [[self.reads[k] for k in schema.key]])
        older = self._changes_of(touched.next_batches.evidence, keys)
        own = self.staged.filter(keys.holds([self.staged[k] for k in schema.key]))
        if older.num_rows + own.num_rows > MAX_TOUCHED_CHANGES:
            raise Declined(f"rows of chunks have {counted(older.num_rows + own.num_rows, 'change')}")
        self.rows = pa.concat_tables([self.reads, older, own]).combine_chunks()
        self.changes_of = self._changes_by_key(older.num_rows)

    def added(self) -> tuple[pa.Table, tuple[ChunkResult, ...]]:
        """The `read` and `sweep` rows that the chunks add to the changes, and one result per chunk."""
        judged, verdicts = self.verdicts()
        added = [each for each, verdict in zip(judged, verdicts, strict=True) if verdict in (INSERTED, REPAIRED)]
        return self._rows_to_add(added), _results(judged, verdicts)

    def verdicts(self) -> tuple[list[_JudgedRow], list[str]]:
        judged = [self._judge(claim, key, row) for row, (claim, key) in enumerate(self._keyed_reads())]
        return judged, self._verdicts(judged)

    # --- input ----------------------------------------------------------------------------------------------------

    def _reads(self) -> pa.Table:
        """The chunks' rows in the shape of changes; columns that only changes have are NULL."""
        pieces = [arrow_columns.in_shape(rows, self.shape) for _, rows in self.touched.rows]
        return pa.concat_tables([self.shape.empty_table(), *pieces])

    def _changes_of(self, batches: Sequence[PlannedBatch], only: KeySet | None = None) -> pa.Table:
        files = [f for b in batches for f in b.files]
        return read_changes(self.touched.table, files, self.most_bytes, only=only)

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

    # --- verdicts -------------------------------------------------------------------------------------------------

    def _judge(self, claim: Claim, key: Key, read: int) -> _JudgedRow:
        changes = self.changes_of.get(key, [])
        unseen = [c for c in changes if not c.is_seen_by(claim)]
        older_unseen = [c for c in unseen if c.is_older]
        below = [c for c in changes if not c.is_older and c.commit_lsn < int(claim.watermark_lsn)]
        stream = max(below, key=lambda c: c.place, default=None)
        is_lost = any(c.commit_lsn < int(claim.low_lsn) for c in unseen)
        if stream is not None or not older_unseen:
            return _JudgedRow(claim, key, read, False, stream, is_lost)
        newest = max(older_unseen, key=lambda c: c.place)
        return _JudgedRow(claim, key, newest.row, newest.is_delete, None, is_lost)

    def _verdicts(self, judged: Sequence[_JudgedRow]) -> list[str]:
        forms = self._forms_of([j.row for j in judged], [j.stream.row for j in judged if j.stream is not None])
        current_forms = self._current_forms()
        verdicts = []
        for number, each in enumerate(judged):
            stream = each.stream
            if stream is not None and not stream.is_seen_by(each.claim):
                verdicts.append(OVERTAKEN)
                continue
            is_present = number in current_forms if stream is None else not stream.is_delete
            opponent = current_forms.get(number) if stream is None else forms[stream.row]
            if each.is_delete:
                verdicts.append(REPAIRED if is_present else OVERTAKEN)
            elif not is_present:
                verdicts.append(INSERTED)
            else:
                verdicts.append(UNCHANGED if forms[each.row] == opponent else REPAIRED)
        return verdicts

    def _forms_of(self, *rows: Sequence[int]) -> dict[int, Stored]:
        numbers = sorted({row for some in rows for row in some})
        return dict(zip(numbers, stored_forms(self.rows.take(pa.array(numbers, pa.int64())), self.names), strict=True))

    def _current_forms(self) -> dict[int, Stored | None]:
        """The stored forms of current's rows with the chunks' keys, by the numbers of the chunks' rows.

        None stands for a row that lacks a value. It equals no other row.
        """
        target = self.touched.target
        found = target.find([self.reads[k] for k in self.schema.key])
        forms: dict[int, Stored | None] = {}
        for number in np.unique(found.files).tolist():
            chosen = np.flatnonzero(found.files == number)
            chosen = chosen[np.argsort(found.rows[chosen])]
            picked = target.rows(target.files[number], found.rows[chosen].tolist(), self.names)
            holes = picked[ROW_HOLES].to_pylist()
            reads = found.keys[chosen].tolist()
            for read, form, lacks in zip(reads, stored_forms(picked, self.names), holes, strict=True):
                forms[read] = None if lacks else form
        return forms

    # --- rows to write --------------------------------------------------------------------------------------------

    def _rows_to_add(self, added: Sequence[_JudgedRow]) -> pa.Table:
        """The rows to add, each at its chunk's watermark. A `sweep` row has only the key."""
        rows = self.rows.take(pa.array([each.row for each in added], pa.int64()))
        stays = pa.array([not each.is_delete for each in added], pa.bool_())
        facts: dict[str, Sequence[Any]] = {
            "_generation": [self.touched.next_batches.generation] * len(added),
            "_commit_lsn": [int(each.claim.watermark_lsn) for each in added],
            "_ordinal": [0] * len(added),
            "_xid": [None] * len(added),
            "_committed_at": [watermark_time(each.claim) for each in added],
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
                columns.append(_null_unless(stays, rows[f.name].combine_chunks()))
        return pa.table(columns, schema=self.shape)


def _results(judged: Sequence[_JudgedRow], verdicts: Sequence[str]) -> tuple[ChunkResult, ...]:
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


def _null_unless(stays: pa.Array, values: pa.Array) -> pa.Array:
    """The values, with NULL for each row that does not stay."""
    numbers = pc.if_else(stays, pa.array(np.arange(len(values))), pa.scalar(None, pa.int64()))
    return values.take(numbers)


def stored_forms(table: pa.Table, names: Sequence[str]) -> list[Stored]:
    """One tuple per row. Two tuples are equal exactly if their rows are stored alike (`fold.stored_form`)."""
    columns = []
    for name in names:
        column = arrow_columns.comparable(table[name])
        values = column.to_pylist()
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            values = [_form(value, is_map=pa.types.is_map(column.type)) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def _form(value: Any, *, is_map: bool = False) -> Any:
    """A comparable form of a value: -0.0 differs from 0.0, NaN equals NaN, and the order of a map does not matter."""
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
