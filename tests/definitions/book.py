"""Plays hundreds of sequences at once in one database, each in a schema of its own, and judges each.

    create, capture ──► rows, drain ──► pieces of all sequences by turns, chunks in between ──► a run ──► judged
        ──► what cannot be captured is mended ──► backfills, until nothing wants one ──► rows, a run ──► judged

So what a drain or a backfill costs is shared by all. A task that fails as a whole is played again with halves of the
sequences, until the one is left that made it fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random

import psycopg

from tests.definitions.altered_table import LISTED, AlteredTable
from tests.definitions.capturing import EQUAL, NEVER, Capture, Known, Verdict
from tests.definitions.sequences import Script, Sequence, begun, script
from tests.support.pipeline import Pipeline
from tidemark.config import TableRule

RULES = (TableRule("s*.*", line=3),)

MakePipeline = Callable[[], AbstractContextManager[Pipeline]]
MakeCapture = Callable[[Pipeline], Capture]


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
    first: Verdict = EQUAL
    mended: Verdict = EQUAL
    last: Verdict = EQUAL
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


class Book:
    """One database with its pipeline, and the sequences in it."""

    def __init__(self, pipeline: Pipeline, has_trigger: bool, capture: MakeCapture) -> None:
        self.pipeline, self.has_trigger = pipeline, has_trigger
        self.capture = capture(pipeline)

    def play(self, sequences: Several[Sequence]) -> list[Outcome]:
        """All of one way to publish."""
        played = [self._begin(sequence, f"s{number}") for number, sequence in enumerate(sequences, 1)]
        self._open(played)
        scripts = {one.outcome.schema: script(one.outcome.sequence, one.table) for one in played}
        for one in played:
            one.outcome.script = scripts[one.outcome.schema]
        pieces = max(len(each.pieces) for each in scripts.values())
        for number in range(pieces):
            if number:
                reading = [one for one in played if number < len(scripts[one.outcome.schema].pieces)]
                self._read_chunks([one for one in reading if not one.outcome.invalid])
            for one in played:
                if number < len(scripts[one.outcome.schema].pieces):
                    self._say(one, scripts[one.outcome.schema].pieces[number])
        before = self._staged_counts()
        errors = self.capture.run()
        self._count(played, before)
        self._judge(played, "first", errors)
        for one in played:
            one.outcome.mending = tuple(one.table.mended())
            self._say(one, one.outcome.mending)
        if any(one.outcome.mending for one in played):
            errors = self.capture.run()
        self._judge(played, "mended", errors)
        self.capture.backfills()
        for one in played:
            one.table.random = Random(one.outcome.sequence.seed)
            one.outcome.later = tuple(one.table.changes())
            self._say(one, one.outcome.later)
        errors = self.capture.run()
        if self.capture.backfills() or self.capture.unplaced():
            errors = self.capture.run()
        self._judge(played, "last", errors)
        return [one.outcome for one in played]

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
        all_tables = played[0].outcome.sequence.base not in LISTED
        self.capture.begin(all_tables=all_tables, has_trigger=self.has_trigger)
        for one in played:
            pipeline.execute(one.outcome.creation[1])
        self.capture.run()
        known = self.capture.known({})
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
        called = self.capture.called()
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

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, played: list[_Played], when: str, errors: dict[str, str]) -> None:
        known = self.capture.known(errors)
        for one in played:
            if not one.outcome.invalid:
                setattr(one.outcome, when, self._verdict(one, known))

    def _verdict(self, one: _Played, known: Known) -> Verdict:
        table = one.table
        return self.capture.verdict(table.here, known, has_current=table.has_current, only=table.only)

    def _staged_counts(self) -> int:
        return len(self.pipeline.registered())

    def _count(self, played: list[_Played], before: int) -> None:
        """What flowed since then, by operation."""
        known = self.capture.known({})
        counts: dict[str, Counter[str]] = {}
        for batch in self.pipeline.registered()[before:]:
            for changed in self.pipeline.manifest(batch).tables:
                counts.setdefault(changed.table, Counter()).update(changed.counts)
        for one in played:
            own = counts.get(known.called.get(known.at_source[one.table.here][0], ""), Counter())
            one.outcome.updates, one.outcome.changes = own["update"], sum(own.values())


def play_all(
    make: MakePipeline, sequences: Several[Sequence], has_trigger: bool, at_once: int, capture: MakeCapture = Capture
) -> Iterator[Outcome]:
    """Every sequence, `at_once` in a database."""
    for listed in (False, True):
        mine = [sequence for sequence in sequences if (sequence.base in LISTED) == listed]
        for start in range(0, len(mine), at_once):
            yield from _play_some(make, mine[start : start + at_once], has_trigger, capture)


def _play_some(
    make: MakePipeline, sequences: Several[Sequence], has_trigger: bool, capture: MakeCapture
) -> list[Outcome]:
    try:
        with make() as pipeline:
            return Book(pipeline, has_trigger, capture).play(sequences)
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
        return [
            *_play_some(make, first, has_trigger, capture),
            *_play_some(make, second, has_trigger, capture),
        ]
