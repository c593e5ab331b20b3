"""Records which parts of each table were proven equal to the source, when, and as of which LSN: rows of `parts`.

    cut ──► parts of the key's order, none proven ──a verify of some is applied──► proven as of its end
                                                  └──a chunk of it differs───────► differing, until it is proven

A part is `(lower, upper]` of the key's order. The parts of a table cover the whole table, and a table without a key has
one part. A verify (a backfill of purpose `verify` or `repair`) reads some of them. Its result applies to all parts that
it read: they are proven if all their rows were compared, and are equal or repaired. A table's `verified_through` is its
oldest part's proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from psycopg.types.json import Jsonb

from tidemark.formats.manifest import KeyPart
from tidemark.ledger.captured import tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading.backfills import Backfill, KeyOrder
from tidemark.lsn import Lsn
from tidemark.wording import counted, plural


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a table. `estimated_rows` is the estimate at the time of the cut. `differing` describes the
    differences that a verify detected and did not repair, with the verify's id. The verify's own rows do not stay:
    they are removed with its staging."""

    part: int
    bounds: KeyPart
    estimated_rows: int
    proven_at: datetime | None
    proven_lsn: Lsn | None
    differing: str | None


@dataclass(frozen=True, slots=True)
class TableCut:
    """The parts of a table's key order. The parts' bounds are positions in `key_order`."""

    key_order: KeyOrder
    parts: tuple[Part, ...]

    @property
    def estimated_rows(self) -> int:
        return sum(part.estimated_rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class Verified:
    """How far a table is proven. `through_lsn` and `through_at` are the oldest part's proof, None if any part has
    none. `differing` describes differences that were detected and not repaired."""

    parts: int
    proven: int
    through_lsn: Lsn | None
    through_at: datetime | None
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """The result of a verify, summed over its chunks. `unknown` is the number of chunks without a result, and a
    missing sweep counts as one. `missing` rows are not in the target, `extra` rows not in the source, and `differs`
    rows have other values, counted by column in `columns`."""

    chunks: int = 0
    unknown: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    differs: int = 0
    columns: dict[str, int] = field(default_factory=dict)

    @property
    def differences(self) -> int:
        return self.missing + self.extra + self.differs

    def __str__(self) -> str:
        """The differences, by kind, and the columns that differ."""
        kinds = []
        if self.missing:
            kinds.append(f"{counted(self.missing, 'row')} {plural(self.missing, 'is')} missing")
        if self.extra:
            kinds.append(f"{counted(self.extra, 'row')} {plural(self.extra, 'is')} not in the source")
        if self.differs:
            columns = ", ".join(f"{name} ({count})" for name, count in self.columns.items())
            differ = "differs" if self.differs == 1 else "differ"
            kinds.append(f"{counted(self.differs, 'row')} {differ}" + (f" in {columns}" if columns else ""))
        if self.unknown:
            kinds.append(f"what became of {counted(self.unknown, 'chunk')} is not known")
        return ", ".join(kinds) or "no difference"


def cut_of(ledger: Ledger, table: str) -> TableCut | None:
    """The table's parts in order; None if the table was never cut."""
    rows = ledger.execute(
        """
        SELECT key_order, part, lower, upper, estimated_rows, proven_at, proven_lsn, differing FROM tidemark.parts
         WHERE pipeline = %s AND "table" = %s ORDER BY part
        """,
        (ledger.pipeline, table),
    ).fetchall()
    if not rows:
        return None
    parts = tuple(Part(part, _bounds(lower, upper), *rest) for _, part, lower, upper, *rest in rows)
    return TableCut(rows[0][0], parts)


def cut(ledger: Ledger, table: str, key_order: KeyOrder, bounds: Sequence[KeyPart], rows: int) -> TableCut:
    """Cut the table into these parts, of about `rows` rows together. The new parts get the oldest proof of the
    previous parts if all of these have one, and their recorded differences."""
    with ledger.transaction():
        tables.lock(ledger, [table])
        before = ledger.row(
            """
            WITH gone AS (DELETE FROM tidemark.parts WHERE pipeline = %s AND "table" = %s RETURNING *)
            SELECT bool_and(proven_at IS NOT NULL), min(proven_at), min(proven_lsn), max(differing) FROM gone
            """,
            (ledger.pipeline, table),
        )
        all_proven, proven_at, proven_lsn, differing = before
        for number, part in enumerate(bounds, 1):
            ledger.insert(
                "parts",
                table=table,
                part=number,
                key_order=Jsonb(key_order),
                lower=None if part.lower is None else list(part.lower),
                upper=None if part.upper is None else list(part.upper),
                estimated_rows=-(-rows // len(bounds)),
                proven_at=proven_at if all_proven else None,
                proven_lsn=proven_lsn if all_proven else None,
                differing=differing,
            )
    new_cut = cut_of(ledger, table)
    assert new_cut is not None
    return new_cut


def outcome(ledger: Ledger, verify: Backfill) -> VerifyOutcome:
    """The sum of the results of the verify's chunks."""
    rows = ledger.execute(
        "SELECT rows, result FROM tidemark.chunks WHERE pipeline = %s AND backfill = %s AND claimed_lsn IS NOT NULL",
        (ledger.pipeline, verify.backfill),
    ).fetchall()
    results = [result for _, result in rows if result is not None]
    unknown = len(rows) - len(results) + (verify.sweeps and verify.swept is None)
    extra = sum(result.get("extra", 0) for result in results)
    columns: dict[str, int] = {}
    for result in results:
        for name, count in result.get("columns", {}).items():
            columns[name] = columns.get(name, 0) + count
    return VerifyOutcome(
        chunks=len(rows),
        unknown=unknown,
        rows=sum(count for count, _ in rows),
        missing=sum(result.get("inserted", 0) for result in results),
        extra=extra + (verify.swept or 0),
        differs=sum(result.get("repaired", 0) for result in results) - extra,
        columns=dict(sorted(columns.items())),
    )


def note_differences(ledger: Ledger, verify: Backfill) -> None:
    """Record the differences in the results so far. If the verify is closed later, nothing else reads its results.
    The caller has locked the table's row."""
    row = tables.one(ledger, verify.table)
    result = replace(outcome(ledger, verify), unknown=0)
    if verify.purpose == "verify" and result.differences and row is not None and _may_be_judged(row):
        _write_difference(ledger, verify, result)


def conclude(ledger: Ledger, verify: Backfill) -> bool:
    """Record the result of an applied verify for its parts. Returns whether they are proven.

    - Differences are recorded unless they were repaired, even if results are missing. If the verify read the rows of a
      filter only, they are recorded for all parts.
    - Nothing is proven if a result is missing or a filter was used.
    - Nothing is recorded if the table is marked, because a marked table may differ.

    The caller has locked the table's row.
    """
    row = tables.one(ledger, verify.table)
    result = outcome(ledger, verify)
    if row is None or not _may_be_judged(row):
        return False
    if result.differences and verify.purpose == "verify":
        _write_difference(ledger, verify, result)
        return False
    if result.unknown or verify.row_filter is not None:
        return False
    ledger.execute(
        """
        UPDATE tidemark.parts SET proven_at = %s, proven_lsn = %s, differing = NULL
         WHERE pipeline = %s AND "table" = %s AND part = ANY(%s)
        """,
        (verify.ended_at, verify.complete_lsn, ledger.pipeline, verify.table, _numbers(ledger, verify)),
    )
    return True


def _may_be_judged(row: TableRow) -> bool:
    """Whether the table is captured and not marked."""
    return row.life.is_captured and not row.life.needs_backfill


def _write_difference(ledger: Ledger, verify: Backfill, result: VerifyOutcome) -> None:
    """Record the differences for the verify's parts, or for all parts if the table was cut anew since, because then
    the part is unknown."""
    numbers = _numbers(ledger, verify)
    is_cut_anew = verify.parts is not None and len(numbers) < len(verify.parts)
    ledger.execute(
        """
        UPDATE tidemark.parts SET differing = %s
         WHERE pipeline = %s AND "table" = %s AND (%s OR part = ANY(%s))
        """,
        (f"verify {verify.backfill}: {result}", ledger.pipeline, verify.table, is_cut_anew, numbers),
    )


def _numbers(ledger: Ledger, verify: Backfill) -> list[int]:
    """The numbers of the parts that the verify read and that still exist; all parts if it read the whole table."""
    now = cut_of(ledger, verify.table)
    if now is None or (verify.parts is not None and now.key_order != verify.key_order):
        return []
    bounds = None if verify.parts is None else set(verify.parts)
    return [part.part for part in now.parts if bounds is None or part.bounds in bounds]


def withdraw(ledger: Ledger) -> None:
    """Delete the proofs of all tables, so that the next verifies prove all of them anew."""
    ledger.execute(
        "UPDATE tidemark.parts SET proven_at = NULL, proven_lsn = NULL WHERE pipeline = %s", (ledger.pipeline,)
    )


def verified(ledger: Ledger) -> dict[str, Verified]:
    """How far each table is proven, by table. Tables that were never cut are left out."""
    rows = ledger.execute(
        """
        SELECT "table", count(*), count(proven_at), min(proven_lsn), min(proven_at),
               coalesce(array_agg(DISTINCT differing) FILTER (WHERE differing IS NOT NULL), '{}')
          FROM tidemark.parts WHERE pipeline = %s GROUP BY "table"
        """,
        (ledger.pipeline,),
    )
    return {
        table: Verified(
            parts, proven, lsn if proven == parts else None, at if proven == parts else None, tuple(differing)
        )
        for table, parts, proven, lsn, at, differing in rows
    }


def _bounds(lower: list[str] | None, upper: list[str] | None) -> KeyPart:
    return KeyPart(None if lower is None else tuple(lower), None if upper is None else tuple(upper))
