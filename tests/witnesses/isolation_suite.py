"""Plays PostgreSQL's isolation tests, each permutation in a schema of its own, in one captured database.

    schemas, published ──► a run ──► each one's set-up ──► a run
            ──► each one's steps, on its sessions' connections, and the sessions' tear-down
                  └── between two steps, now and then: a drain, or the chunks of a backfill or of a verify
            ──► a run, and each table judged; a verify of some

The tear-down of the specification is not played: it drops the tables that are judged. The event trigger is there, so
that the thousands of tables need no backfill. The publication is FOR TABLES IN SCHEMA: with one FOR ALL TABLES,
PostgreSQL's own decoding ends the server where a partition changes while DETACH … CONCURRENTLY is under way.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn

from tests.support import judge
from tests.witnesses.captured_database import CapturedDatabase, DeltaTables, TableVerdict, error_of
from tests.witnesses.isolation_spec import IsolationSpec, PlayedStep, SpecSession, drawn, parse
from tidemark.backfill.verify_report import TableProof
from tidemark.errors import BackfillClosed, BackfillNotApplied, DifferencesFound, SourceLocked, TidemarkError
from tidemark.ledger.captured import relation_ids
from tidemark.names import TableName

# Files that need what no captured database has: why they are left out.
EXCLUDED_SPECS: Final = {
    "stats": "waits for statistics, and changes no table that is kept",
    "intra-grant-inplace": "deletes a table's row of pg_class by hand: PostgreSQL itself cannot drop its schema then",
}
# The shares of permutations with a backfill, a drain, or a verify between two of their steps; each file has a backfill
# in one. A verify compares Delta tables.
_READ: Final = 0.1
_DRAINED: Final = 0.2
_VERIFIED: Final = 0.1
_ANCHOR: Final = "witness_anchor"
# A step that takes longer is cancelled, as isolationtester does.
_STEP_S: Final = 30.0
TOGETHER: Final = 20
# How often what a backfill lacks is read again, as when a person clears its reading tasks.
_READS: Final = 4

_Reached = Literal["nowhere", "planned", "read"]


@dataclass
class SpecConnection:
    """One session of a permutation: a connection whose statements are sent without waiting for their end."""

    connection: PGconn
    errors: int = 0  # of statements

    @classmethod
    def open(cls, conninfo: str, schema: str) -> SpecConnection:
        options = psycopg.conninfo.make_conninfo(conninfo, options=f"-c search_path={schema},public")
        return cls(pq.PGconn.connect(options.encode()))

    @property
    def pid(self) -> int:
        return self.connection.backend_pid

    def send(self, statements: str) -> None:
        if self.connection.status == pq.ConnStatus.OK:
            self.connection.send_query(statements.encode())

    def has_ended(self, wait_s: float) -> bool:
        """Whether what was sent has ended, after `wait_s` at most. Its errors are the test's own."""
        if self.connection.status != pq.ConnStatus.OK:
            return True
        if self.connection.is_busy():
            readable, _, _ = select.select([self.connection.socket], [], [], wait_s)
            if readable:
                with suppress(psycopg.OperationalError):  # a step may end its own session
                    self.connection.consume_input()
        while self.connection.status == pq.ConnStatus.OK and not self.connection.is_busy():
            if (result := self.connection.get_result()) is None:
                return True
            self.errors += result.status == pq.ExecStatus.FATAL_ERROR
            if result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH):
                return True
        return self.connection.status != pq.ConnStatus.OK

    def wait(self) -> bool:
        """Wait for the end of what was sent; False if it had to be cancelled."""
        deadline = time.monotonic() + _STEP_S
        while not self.has_ended(0.05):
            if time.monotonic() > deadline:
                self.connection.get_cancel().cancel()
                return self.has_ended(5)
        return True

    def play(self, parts: Iterable[str]) -> None:
        for part in parts:
            self.send(part)
            self.wait()

    def close(self) -> None:
        self.connection.finish()


@dataclass(slots=True)
class _Permutation:
    """One order of the steps of a file, in a schema of its own."""

    file: str
    spec: IsolationSpec
    steps: list[PlayedStep]
    schema: str
    has_chunk: bool
    error: str | None = None  # of a drain, or of a backfill, beside its steps


@dataclass
class IsolationSuite:
    """`source_tree` is PostgreSQL's; of a file with more than `most` permutations, `most` are drawn; 0: all are played.
    Those that a play with this seed and `beyond` in place of `most` draws are left out. Files that follow each other
    share runs, up to `TOGETHER` permutations."""

    source_tree: Path
    database: CapturedDatabase
    seed: int = 0
    most: int = 0
    has_trigger: bool = True
    beyond: int = 0
    played: int = 0  # permutations, of all files
    listed: int = 0  # permutations that these files have
    without_set_up: int = 0  # permutations whose set-up failed: it makes what another schema's has made
    steps: int = 0
    waited: int = 0  # steps
    drains: int = 0  # between two steps
    chunks: int = 0  # read between two steps
    reads_again: int = 0  # of backfills, since a table changed behind a chunk
    closed: int = 0  # backfills of tables that steps dropped or built anew
    verified: int = 0  # tables
    verified_between: int = 0  # tables, between two steps

    def files(self, chosen: Iterable[str] = ()) -> list[str]:
        names = sorted(file.stem for file in self._folder.glob("*.spec"))
        return [name for name in names if name not in EXCLUDED_SPECS and (not chosen or name in set(chosen))]

    @property
    def _folder(self) -> Path:
        return self.source_tree / "src" / "test" / "isolation" / "specs"

    def set_up(self) -> None:
        self.database.begin("FOR TABLES IN SCHEMA public", has_trigger=self.has_trigger)

    def covered(self) -> dict[str, int]:
        """What was played, for the page."""
        return {
            "permutations": self.played,
            "permutations in these files": self.listed,
            "permutations whose set-up failed": self.without_set_up,
            "steps": self.steps,
            "steps that waited for another session": self.waited,
            "drains between two steps": self.drains,
            "tables read in chunks between two steps": self.chunks,
            "readings that a changed table asked for again": self.reads_again,
            "backfills that ended with a table's life or shape": self.closed,
            "tables verified": self.verified,
            "of these, tables read between two steps": self.verified_between,
        }

    def groups(self, chosen: Iterable[str] = ()) -> Iterator[list[str]]:
        """Files that are played together."""
        together: list[str] = []
        count = 0
        for file in self.files(chosen):
            number = len(self._orders(file))
            if not number:
                continue
            if together and count + number > TOGETHER:
                yield together
                together, count = [], 0
            together.append(file)
            count += number
        if together:
            yield together

    def play(self, files: Iterable[str]) -> Iterator[TableVerdict]:
        """Play permutations of the files, and judge their tables."""
        permutations = [permutation for file in files for permutation in self._permutations(file)]
        for first in range(0, len(permutations), TOGETHER):
            yield from self._play_together(permutations[first : first + TOGETHER])

    def _play_together(self, permutations: list[_Permutation]) -> Iterator[TableVerdict]:
        yield from self._run(permutations[0].file, lambda: self._publish(permutations))
        yield from self._run(permutations[0].file, lambda: self._set_up(permutations))
        for permutation in permutations:
            self._play(permutation)
            if permutation.error is not None:
                yield TableVerdict(permutation.file, f"({permutation.schema})", "error", permutation.error)
        yield from self._run(permutations[-1].file)
        file_of = {permutation.schema: permutation.file for permutation in permutations}
        yield from self.database.judge(lambda table: None if table.name == _ANCHOR else file_of.get(table.schema))
        firsts = {permutation.file: permutation.schema for permutation in reversed(permutations)}
        if isinstance(self.database.tables, DeltaTables) and (error := self._verify(set(firsts.values()))):
            yield TableVerdict(permutations[-1].file, "(the verify)", "error", error)
        self.database.drop_schemas(file_of)

    def _run(self, file: str, before: Callable[[], None] = lambda: None) -> Iterator[TableVerdict]:
        before()
        if error := self.database.run():
            yield TableVerdict(file, "(the run)", "error", error)

    def _spec(self, file: str) -> IsolationSpec:
        return parse((self._folder / f"{file}.spec").read_text())

    def _permutations(self, file: str) -> list[_Permutation]:
        spec = self._spec(file)
        orders = self._orders(file)
        self.listed += len(list(spec.permutations()))
        random = Random(f"{self.seed} {self.beyond} {file}")
        read_in = {random.randrange(len(orders)), *(n for n in range(len(orders)) if random.random() < _READ)}
        before, self.played = self.played, self.played + len(orders)
        return [
            _Permutation(file, spec, steps, f"permutation_{before + number}", has_chunk=number - 1 in read_in)
            for number, steps in enumerate(orders, 1)
        ]

    def _orders(self, file: str) -> list[list[PlayedStep]]:
        """The permutations of the file that are played."""
        orders = list(self._spec(file).permutations())
        return drawn(orders, f"{self.seed} {file}", self.most, self.beyond)

    def _publish(self, permutations: list[_Permutation]) -> None:
        """A run that drains a row of each schema proves that its later tables were published from their first row."""
        environment = self.database.environment
        for permutation in permutations:
            environment.execute(
                f"CREATE SCHEMA {permutation.schema}",
                f"ALTER PUBLICATION {environment.config.publication} ADD TABLES IN SCHEMA {permutation.schema}",
                f"CREATE TABLE {permutation.schema}.{_ANCHOR} (id int PRIMARY KEY)",
                f"INSERT INTO {permutation.schema}.{_ANCHOR} VALUES (1)",
            )

    def _set_up(self, permutations: list[_Permutation]) -> None:
        environment = self.database.environment
        for permutation in permutations:
            control = SpecConnection.open(environment.source, permutation.schema)
            control.play(permutation.spec.setup)
            control.close()
            self.without_set_up += control.errors > 0

    def _play(self, permutation: _Permutation) -> None:
        source, spec, steps = self.database.environment.source, permutation.spec, permutation.steps
        random = Random(f"{self.seed} {permutation.schema}")
        sessions = {session.name: SpecConnection.open(source, permutation.schema) for session in spec.sessions}
        end_reading: Callable[[], None] | None = None
        try:
            for session in spec.sessions:
                sessions[session.name].play(session.setup)
            chance = random.random()
            has_verify = chance > 1 - _VERIFIED and isinstance(self.database.tables, DeltaTables)
            has_stop = permutation.has_chunk or chance < _DRAINED or has_verify
            stop = random.randrange(len(steps)) if has_stop else None
            for number, step in enumerate(steps):
                if number == stop and permutation.has_chunk:
                    end_reading = self._begin_backfill(permutation)
                elif number == stop and has_verify:
                    end_reading = self._begin_verify(permutation)
                elif number == stop:
                    self.drains += 1
                    permutation.error = self.database.drain()
                self._step(spec.session_of(step.name), step, sessions)
            for session in spec.sessions:
                sessions[session.name].wait()
                sessions[session.name].play(session.teardown)
        finally:
            for connection in sessions.values():
                connection.close()
        self.database.end_prepared()
        if end_reading is not None:
            permutation.error = error_of(end_reading)

    def _step(self, session: SpecSession, step: PlayedStep, sessions: dict[str, SpecConnection]) -> None:
        """Play a step until it has ended, or waits for another session."""
        connection = sessions[session.name]
        connection.wait()
        connection.send(session.steps[step.name])
        self.steps += 1
        deadline = time.monotonic() + _STEP_S
        while not step.is_let_go and not connection.has_ended(0.02) and time.monotonic() < deadline:
            if self._is_blocked(connection.pid, [other.pid for other in sessions.values()]):
                self.waited += 1
                return

    def _is_blocked(self, pid: int, pids: list[int]) -> bool:
        blocked = "SELECT pg_catalog.pg_isolation_test_session_is_blocked(%s, %s::int4[])"
        row = self.database.environment.session("watching").execute(blocked, (pid, pids)).fetchone()
        return bool(row and row[0])

    def _begin_backfill(self, permutation: _Permutation) -> Callable[[], None] | None:
        """Plan a backfill of the tables and read chunks of it; what ends it when the sessions are gone. Where a lock
        keeps it from being planned, or chunks from being read, that is done then, as by a task's retry."""
        environment = self.database.environment
        names = self._readable(permutation.schema)
        if not names:
            return None
        environment.begin_backfill(*names)
        came = self._plan_and_read(permutation, environment.plan)
        self.chunks += len(names) if came == "read" else 0
        return None if came is None else lambda: self._end_backfill(permutation.schema, came != "nowhere")

    def _plan_and_read(self, permutation: _Permutation, plan: Callable[[], object]) -> _Reached | None:
        """How far it came before a lock; None after an error, which the permutation keeps."""
        came: _Reached = "nowhere"
        try:
            plan()
            came = "planned"
            self.database.environment.read()
            came = "read"
        except SourceLocked:
            pass
        except TidemarkError as error:
            permutation.error = f"{type(error).__name__}: {error}"
            return None
        return came

    def _readable(self, schema: str) -> list[str]:
        """The captured tables of a schema that are at the source now. No lock keeps this query waiting."""
        with self.database.environment.ledger_connection() as ledger:
            called = relation_ids.names(ledger)
        rows = self.database.environment.table_rows().items()
        captured = {str(relation_ids.name_in(called, table)) for table, row in rows if row.life.can_be_read}
        listed = (
            "SELECT relname FROM pg_catalog.pg_class "
            f"WHERE relnamespace = '{schema}'::regnamespace AND NOT relispartition"
        )
        at_source = {str(TableName(schema, name)) for (name,) in self.database.environment.query(listed)}
        return sorted((captured & at_source) - {str(TableName(schema, _ANCHOR))})

    def _end_backfill(self, schema: str, is_planned: bool) -> None:
        """What the tables changed behind a chunk is read again, as when its reading tasks are cleared. A backfill ends
        early with the life of its table."""
        environment = self.database.environment
        if not is_planned and self._readable(schema):
            environment.plan()
        for _ in range(_READS):
            environment.read()
            try:
                environment.end_backfill()
                return
            except BackfillClosed:
                self.closed += 1
                return
            except BackfillNotApplied:
                self.reads_again += 1
        environment.reported()

    def _begin_verify(self, permutation: _Permutation) -> Callable[[], None] | None:
        """Plan a verify of the tables and read their chunks; what ends it when the sessions are gone."""
        environment = self.database.environment
        tables = self._provable({permutation.schema})
        if not tables:
            return None
        environment.begin_verify(*tables)
        came = self._plan_and_read(permutation, environment.plan_verify)
        self.verified_between += len(tables) if came == "read" else 0
        return self._end_verify if came in ("planned", "read") else None

    def _end_verify(self) -> None:
        """As `_end_backfill`. Nobody touches the lake, so a difference is a fault."""
        environment = self.database.environment
        for _ in range(_READS):
            environment.read()
            try:
                report = environment.end_verify()
            except BackfillClosed:
                self.closed += 1
                return
            except BackfillNotApplied:
                self.reads_again += 1
                continue
            if differences := self._differences(report.tables):
                raise DifferencesFound(pipeline=environment.config.pipeline, differences=differences, keys="not told")
            return
        environment.end_verify()

    def _provable(self, schemas: Collection[str]) -> list[str]:
        """The captured tables of these schemas that no mark excuses, by their ids."""
        tables = [table for table, row in judge.captured(self.database.environment).items() if not judge.marked(row)]
        return [table for table in tables if TableName.parse(table).schema in schemas]

    def _verify(self, schemas: Collection[str]) -> str | None:
        """What a verify of these schemas' tables detects."""
        chosen = self._provable(schemas)
        if not chosen:
            return None
        proofs: list[TableProof] = []
        if error := error_of(lambda: proofs.extend(self.database.environment.verify(*chosen).tables)):
            return error
        return self._differences(proofs) or None

    def _differences(self, proofs: Iterable[TableProof]) -> str:
        proofs = list(proofs)
        self.verified += sum(not proof.unproven for proof in proofs)
        return "; ".join(str(proof) for proof in proofs if proof.outcome.differences)
