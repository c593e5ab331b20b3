"""Plays hundreds of sequences at once in one database, each in a schema of its own, and judges each.

    create, capture ──► rows, drain ──► pieces of all sequences by turns, chunks in between ──► a run ──► judged
        ──► what cannot be captured is mended ──► backfills, until nothing wants one ──► rows, a run ──► judged

So what a drain or a backfill costs is shared by all. A task that fails as a whole is played again with halves of the
sequences, until the one is left that made it fail.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg

from tests.definitions.altered_table import LISTED, AlteredTable
from tests.definitions.list_of_rows import Lake, text_of
from tests.definitions.sequences import Script, Sequence, begun, script
from tests.support import judge
from tests.support.pipeline import Pipeline
from tidemark.backfill.backfill_requests import wanted
from tidemark.config import TableRule
from tidemark.ledger.captured import successors
from tidemark.ledger.captured.tables import TableRow
from tidemark.source import definition_trigger

MOST_BACKFILLS = 3
NEVER = ("parked", "differs", "failed", "not captured")
RULES = (TableRule("s*.*", line=3),)

MakePipeline = Callable[[], AbstractContextManager[Pipeline]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is "equal", "marked", "parked", "differs" (and says nothing), "not captured", "history" (which has nothing
    to compare), "failed" (as a whole)."""

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


@dataclass(slots=True)
class Outcome:
    """What became of a sequence: `first` behind the run that met its changes, `mended` behind one that met what makes a
    table fit to be captured again, `last` behind the backfills and further changes of rows. `invalid` is what
    PostgreSQL said of a statement that it refused."""

    sequence: Sequence
    schema: str
    has_trigger: bool
    script: Script | None = None
    creation: tuple[str, ...] = ()
    mending: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    invalid: str = ""
    first: Verdict = Verdict("equal")
    mended: Verdict = Verdict("equal")
    last: Verdict = Verdict("equal")
    updates: int = 0
    changes: int = 0
    chunks: int = 0
    backfills: int = 0

    @property
    def fault(self) -> str:
        """What must not be; "" where all is as it shall be without the trigger."""
        for when, verdict in (("", self.first), (" (behind what mends it)", self.mended)):
            if verdict.word in NEVER:
                return f"{verdict}{when}"
        return "" if self.last.word == "equal" else f"{self.last} (behind its backfill, and later changes)"

    @property
    def word(self) -> str:
        """The kind of the fault."""
        if self.first.word in NEVER:
            return self.first.word
        return f"mended {self.mended.word}" if self.mended.word in NEVER else f"later {self.last.word}"

    @property
    def is_exact(self) -> bool:
        """Equal and unmarked from the first run on."""
        return self.first.word in ("equal", "history") and not self.fault

    def sql(self) -> str:
        """The sequence as a script for a person."""
        lines = [f"-- {self.sequence}{', with the trigger' if self.has_trigger else ''}", *self.creation, "-- run"]
        for number, piece in enumerate(self.script.pieces if self.script else ()):
            lines += ["-- a backfill of the table reads its chunk"] * (number > 0) + [f"{one};" for one in piece]
        lines += ["-- run", f"-- {self.first}"]
        lines += [f"{one};" for one in self.mending]
        lines += [
            "-- a run where anything was mended, and what backfills are wanted",
            *(f"{one};" for one in self.later),
        ]
        lines += ["-- run, and what backfills are wanted", f"-- {self.last}"]
        return "\n".join(lines)


@dataclass
class _Played:
    """`oid` is that of the table that was captured first."""

    outcome: Outcome
    table: AlteredTable
    oid: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """What is judged by: `called` is by the relation's OID the id of its table, `rows` the ledger's of each, `unplaced`
    what readers do not see yet, `at_source` by name a relation's OID and columns, `errors` those of the last run."""

    called: dict[int, str]
    rows: dict[str, TableRow]
    unplaced: set[str]
    at_source: dict[str, tuple[int, list[tuple[int, str]]]]
    errors: dict[str, str]


class Book:
    """One database with its pipeline, and the sequences in it."""

    def __init__(self, pipeline: Pipeline, has_trigger: bool) -> None:
        self.pipeline, self.has_trigger = pipeline, has_trigger
        self.lake = Lake(pipeline)
        self.runs = 0
        self.seconds: Counter[str] = Counter()

    def play(self, sequences: Several[Sequence]) -> list[Outcome]:
        """All of one way to publish."""
        played = [self._begin(sequence, f"s{number}") for number, sequence in enumerate(sequences, 1)]
        self._timed("begin", self._open, played)
        scripts = {one.outcome.schema: script(one.outcome.sequence, one.table) for one in played}
        for one in played:
            one.outcome.script = scripts[one.outcome.schema]
        pieces = max(len(each.pieces) for each in scripts.values())
        for number in range(pieces):
            if number:
                reading = [one for one in played if number < len(scripts[one.outcome.schema].pieces)]
                self._timed("chunks", self._read_chunks, [one for one in reading if not one.outcome.invalid])
            for one in played:
                if number < len(scripts[one.outcome.schema].pieces):
                    self._timed("sql", self._say, one, scripts[one.outcome.schema].pieces[number])
        before = self._staged_counts()
        errors = self._timed("run", self._run)
        self._count(played, before)
        self._timed("judge", self._judge, played, "first", errors)
        for one in played:
            one.outcome.mending = tuple(one.table.mended())
            self._timed("sql", self._say, one, one.outcome.mending)
        if any(one.outcome.mending for one in played):
            errors = self._timed("run", self._run)
        self._timed("judge", self._judge, played, "mended", errors)
        self._backfills()
        for one in played:
            one.table.random = Random(one.outcome.sequence.seed)
            one.outcome.later = tuple(one.table.changes())
            self._timed("sql", self._say, one, one.outcome.later)
        errors = self._timed("run", self._run)
        if self._backfills() or self._unplaced():
            errors = self._timed("run", self._run)
        self._timed("judge", self._judge, played, "last", errors)
        return [one.outcome for one in played]

    def _timed(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        start = time.monotonic()
        result = call(*args)
        self.seconds[what] += time.monotonic() - start  # type: ignore[assignment]
        return result

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _begin(self, sequence: Sequence, schema: str) -> _Played:
        table, creation = begun(sequence, schema)
        outcome = Outcome(sequence, schema, self.has_trigger, creation=tuple(f"{one};" for one in creation))
        return _Played(outcome, table)

    def _open(self, played: list[_Played]) -> None:
        """Empty tables, then the capture, then rows that the stream has."""
        pipeline = self.pipeline
        for one in played:
            pipeline.execute(one.outcome.creation[0])
        if played[0].outcome.sequence.base not in LISTED:
            carried = (
                ", publish_generated_columns = stored" if pipeline.connection.info.server_version >= 180000 else ""
            )
            pipeline.execute(
                f"CREATE PUBLICATION {pipeline.config.publication} FOR ALL TABLES "
                f"WITH (publish_via_partition_root{carried})"
            )
            pipeline.create_slot()
        pipeline.sound()
        if self.has_trigger:
            role = pipeline.one("SELECT current_user")
            pipeline.execute(definition_trigger.create_sql(pipeline.config, role))
        for one in played:
            pipeline.execute(one.outcome.creation[1])
        self._run()
        known = self._known({})
        for one in played:
            one.oid, _ = known.at_source[one.table.here]
            found = self._verdict(one, known)
            assert found.word == "equal", f"{one.outcome.sequence}: {found} before anything changed"

    # --- playing ------------------------------------------------------------------------------------------------------

    def _say(self, one: _Played, statements: Several[str]) -> None:
        if one.outcome.invalid:
            return
        for statement in statements:
            try:
                self.pipeline.execute(statement.replace("{publication}", self.pipeline.config.publication))
            except psycopg.Error as error:
                one.outcome.invalid = f"{statement}: {error}"
                self.pipeline.execute("ROLLBACK")
                return

    def _read_chunks(self, played: list[_Played]) -> None:
        """A backfill of each table reads its chunk, as far as the capture has it."""
        rows = self.pipeline.table_rows()
        called = self._called()
        names = self._readable()
        ids = {one.outcome.schema: called.get(one.oid, "") for one in played if one.oid in names}
        fit = {table for table in ids.values() if table in rows and rows[table].life.may_be_backfilled}
        for one in played:
            one.outcome.chunks += ids.get(one.outcome.schema) in fit
        if fit:
            self.pipeline.plan(tables=tuple(sorted(fit)), replace=True)
            self.pipeline.read()

    def _readable(self) -> set[int]:
        """The relations that are published, and wholly, by OID."""
        rows = self.pipeline.query(
            "SELECT c.oid::bigint FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname "
            "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename "
            f"WHERE p.pubname = '{self.pipeline.config.publication}' AND NOT EXISTS (SELECT FROM pg_inherits i "
            "JOIN pg_class l ON l.oid = i.inhrelid WHERE i.inhparent = c.oid AND l.relpersistence <> 'p')"
        )
        return {oid for (oid,) in rows}

    def _run(self) -> dict[str, str]:
        """One run of the capture; by table, the errors of preflight and merge."""
        self.runs += 1
        report = self.pipeline.preflight()
        report.raise_for_errors()
        errors = {str(table): str(finding.message) for finding in report.table_errors for table in finding.tables}
        self.pipeline.drain()
        errors |= self.lake.merge()
        return errors

    def _backfills(self) -> bool:
        """All that are wanted; whether there was one."""
        for number in range(MOST_BACKFILLS):
            if not wanted(self.pipeline.task()):
                return number > 0
            self._timed("backfill", self._backfill)
        return True

    def _backfill(self) -> None:
        self.pipeline.plan()
        self.pipeline.read()
        self.pipeline.drain()
        self.lake.merge()

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, played: list[_Played], when: str, errors: dict[str, str]) -> None:
        known = self._known(errors)
        for one in played:
            if not one.outcome.invalid:
                setattr(one.outcome, when, self._verdict(one, known))

    def _known(self, errors: dict[str, str]) -> _Known:
        return _Known(self._called(), self.pipeline.table_rows(), self._unplaced(), self._at_source(), errors)

    def _unplaced(self) -> set[str]:
        with self.pipeline.ledger_connection() as ledger:
            return successors.unplaced(ledger)

    def _at_source(self) -> dict[str, tuple[int, list[tuple[int, str]]]]:
        """By name, the relation and those of its columns that the publication carries."""
        rows = self.pipeline.query(
            "SELECT n.nspname || '.' || c.relname, c.oid::bigint, array_agg(a.attnum::int ORDER BY a.attnum), "
            "array_agg(a.attname::text ORDER BY a.attnum) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            f"AND a.attgenerated NOT IN ('v'{self._not_carried()}) "
            "WHERE n.nspname LIKE 's%' AND c.relkind IN ('r', 'p') GROUP BY 1, 2"
        )
        return {name: (oid, list(zip(numbers, names, strict=True))) for name, oid, numbers, names in rows}

    def _verdict(self, one: _Played, known: _Known) -> Verdict:
        here = one.table.here
        oid, columns = known.at_source[here]
        table = known.called.get(oid)
        barred = next((why for name, why in known.errors.items() if name in (here, table)), "")
        row = None if table is None else known.rows.get(table)
        if row is None or table is None:
            return Verdict("marked", barred) if barred else Verdict("not captured", here)
        if row.life.is_parked:
            return Verdict("parked", str(judge.marked(row)))
        if row.life.needs_backfill or table in known.unplaced:
            return Verdict("marked", str(judge.marked(row)))
        if barred or not row.life.is_captured:
            return Verdict("marked", barred or f"it is {row.life.capture}")
        if not one.table.has_current:
            return Verdict("history")
        return self._compare(one, table, columns)

    def _compare(self, one: _Played, table: str, columns: list[tuple[int, str]]) -> Verdict:
        target = self.lake.targets.get(table)
        at_source = Counter(
            tuple(text_of(value) for value in row)
            for row in self.pipeline.query(f"SELECT {', '.join(name for _, name in columns)} FROM {one.table.only}")
        )
        if target is None:
            return (
                Verdict("differs", f"{sum(at_source.values())} rows, and no current") if at_source else Verdict("equal")
            )
        names = [target.field_of(number, name) for number, name in columns]
        if None in names:
            if not target.fields and not at_source:
                return Verdict("equal")
            lacking = [name for (_, name), found in zip(columns, names, strict=True) if found is None]
            return Verdict("differs", f"current has no column {', '.join(lacking)}")
        in_lake = target.values(name for name in names if name is not None)
        if in_lake == at_source:
            return Verdict("equal")
        shown = [f"only at the source {_short(row)}" for row in at_source - in_lake]
        shown += [f"only in current {_short(row)}" for row in in_lake - at_source]
        return Verdict("differs", f"in {[name for _, name in columns]}: {'; '.join(shown[:3])}")

    def _not_carried(self) -> str:
        carries = self.pipeline.connection.info.server_version >= 180000 and self.pipeline.query(
            f"SELECT FROM pg_publication WHERE pubname = '{self.pipeline.config.publication}' AND pubgencols = 's'"
        )
        return "" if carries else ", 's'"

    def _called(self) -> dict[int, str]:
        """By the relation's OID, the id of its table."""
        rows = self.pipeline.ledger_query(
            'SELECT DISTINCT ON (relation_oid) relation_oid, "table" FROM tidemark.relations WHERE pipeline = %s '
            "AND gone_lsn IS NULL ORDER BY relation_oid, noted_at DESC",
            self.pipeline.config.pipeline,
        )
        return {int(oid): table for oid, table in rows}

    def _staged_counts(self) -> int:
        return len(self.pipeline.registered())

    def _count(self, played: list[_Played], before: int) -> None:
        """What flowed since then, by operation."""
        known = self._known({})
        counts: dict[str, Counter[str]] = {}
        for batch in self.pipeline.registered()[before:]:
            for changed in self.pipeline.manifest(batch).tables:
                counts.setdefault(changed.table, Counter()).update(changed.counts)
        for one in played:
            own = counts.get(known.called.get(known.at_source[one.table.here][0], ""), Counter())
            one.outcome.updates, one.outcome.changes = own["update"], sum(own.values())


def _short(row: tuple[str | None, ...]) -> str:
    return str(tuple(v if v is None or len(v) < 20 else f"{v[:6]}…{len(v)}" for v in row))


def play_all(make: MakePipeline, sequences: Several[Sequence], has_trigger: bool, at_once: int) -> Iterator[Outcome]:
    """Every sequence, `at_once` in a database."""
    for listed in (False, True):
        mine = [sequence for sequence in sequences if (sequence.base in LISTED) == listed]
        for start in range(0, len(mine), at_once):
            yield from _play_some(make, mine[start : start + at_once], has_trigger)


def _play_some(make: MakePipeline, sequences: Several[Sequence], has_trigger: bool) -> list[Outcome]:
    try:
        with make() as pipeline:
            return Book(pipeline, has_trigger).play(sequences)
    except Exception as error:
        if len(sequences) == 1:
            outcome = Outcome(
                sequences[0], "s1", has_trigger, first=Verdict("failed", f"{type(error).__name__}: {error}")
            )
            table, creation = begun(sequences[0], "s1")
            outcome.creation, outcome.script = tuple(creation), script(sequences[0], table)
            return [outcome]
        half = len(sequences) // 2
        first, second = sequences[:half], sequences[half:]
        return [*_play_some(make, first, has_trigger), *_play_some(make, second, has_trigger)]
