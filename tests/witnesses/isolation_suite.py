"""Plays PostgreSQL's isolation tests, each permutation in a schema of its own, in one captured database.

    schemas ──► each one's set-up ──► a run
            ──► each one's steps, on its sessions' connections, and the sessions' tear-down
                  └── between two steps, now and then: a drain, or a chunk of a backfill
            ──► a run, and each table judged; a verify of some

The tear-down of the specification is not played: it drops the tables that are judged. The event trigger is there, so
that the thousands of tables need no backfill.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import psycopg
from psycopg import pq, sql
from psycopg.pq.abc import PGconn

from tests.support import judge
from tests.witnesses.captured_database import CapturedDatabase, TableVerdict, error_of
from tests.witnesses.isolation_spec import IsolationSpec, PlayedStep, SpecSession, parse
from tidemark.backfill.verify_report import TableProof
from tidemark.names import TableName

# Files that need what no captured database has: why they are left out.
EXCLUDED_SPECS: Final = {
    "stats": "waits for statistics, and changes no table that is kept",
}
# A step that takes longer is cancelled, as isolationtester does.
_STEP_S: Final = 30.0


@dataclass
class SpecConnection:
    """One session of a permutation: a connection whose statements are sent without waiting for their end."""

    connection: PGconn

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
                self.connection.consume_input()
        while self.connection.status == pq.ConnStatus.OK and not self.connection.is_busy():
            if (result := self.connection.get_result()) is None:
                return True
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


@dataclass
class IsolationSuite:
    """`source_tree` is PostgreSQL's; of a file with more than `most` permutations, `most` are drawn."""

    source_tree: Path
    database: CapturedDatabase
    seed: int = 0
    most: int = 60
    played: int = 0  # permutations, of all files
    steps: int = 0
    waited: int = 0  # steps
    drains: int = 0  # between two steps
    chunks: int = 0  # read between two steps
    verified: int = 0  # tables
    schemas: list[str] = field(default_factory=list)  # of the file that is played

    def files(self, chosen: Iterable[str] = ()) -> list[str]:
        names = sorted(file.stem for file in self._folder.glob("*.spec"))
        return [name for name in names if name not in EXCLUDED_SPECS and (not chosen or name in set(chosen))]

    @property
    def _folder(self) -> Path:
        return self.source_tree / "src" / "test" / "isolation" / "specs"

    def set_up(self) -> None:
        self.database.begin(has_trigger=True)

    def covered(self) -> dict[str, int]:
        """What was played, for the page."""
        return {
            "permutations": self.played,
            "steps": self.steps,
            "steps that waited for another session": self.waited,
            "drains between two steps": self.drains,
            "tables read in chunks between two steps": self.chunks,
            "tables verified": self.verified,
        }

    def play(self, name: str) -> Iterator[TableVerdict]:
        """Play all permutations of a file, and judge their tables."""
        spec = parse((self._folder / f"{name}.spec").read_text())
        random = Random(f"{self.seed} {name}")
        permutations = list(spec.permutations())
        if len(permutations) > self.most:
            permutations = random.sample(permutations, self.most)
        read_in = random.randrange(len(permutations))
        self.schemas = [f"permutation_{self.played + number}" for number in range(1, len(permutations) + 1)]
        self.played += len(permutations)
        self._set_up(spec)
        error = self.database.run()
        for number, (schema, steps) in enumerate(zip(self.schemas, permutations, strict=True)):
            error = error or self._play(spec, schema, steps, random, has_chunk=number == read_in)
        yield from self.database.judge(name, error)
        if error := self._verify():
            yield TableVerdict(name, "(the verify)", "error", error)
        self.database.environment.execute(*(f"DROP SCHEMA IF EXISTS {schema} CASCADE" for schema in self.schemas))

    def _set_up(self, spec: IsolationSpec) -> None:
        for schema in self.schemas:
            self.database.environment.execute(f"CREATE SCHEMA {schema}")
            control = SpecConnection.open(self.database.environment.source, schema)
            control.play(spec.setup)
            control.close()

    def _play(
        self, spec: IsolationSpec, schema: str, steps: list[PlayedStep], random: Random, *, has_chunk: bool
    ) -> str | None:
        """Why a drain or a chunk between two steps failed; None where none did."""
        source = self.database.environment.source
        sessions = {session.name: SpecConnection.open(source, schema) for session in spec.sessions}
        error = None
        try:
            for session in spec.sessions:
                sessions[session.name].play(session.setup)
            stop = random.randrange(len(steps)) if has_chunk or random.random() < 0.2 else None
            for number, step in enumerate(steps):
                if number == stop:
                    error = error or self._between(schema, has_chunk=has_chunk)
                self._step(spec.session_of(step.name), step, sessions)
            for session in spec.sessions:
                sessions[session.name].wait()
                sessions[session.name].play(session.teardown)
        finally:
            for connection in sessions.values():
                connection.close()
        self._end_prepared()
        return error or (self._end_backfill() if has_chunk else None)

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

    def _between(self, schema: str, *, has_chunk: bool) -> str | None:
        """A drain, or chunks of the schema's tables. Chunks that a lock keeps from being read are read when the
        sessions are gone, as by a task's retry."""
        environment = self.database.environment
        if not has_chunk:
            self.drains += 1
            return self.database.drain()
        tables = [table for table in judge.captured(environment) if TableName.parse(table).schema == schema]
        environment.begin_backfill(*tables)
        error = error_of(environment.plan)
        if error is None and error_of(environment.read) is None:
            self.chunks += len(tables)
        return error

    def _end_backfill(self) -> str | None:
        return error_of(self.database.environment.read, self.database.environment.end_backfill)

    def _verify(self) -> str | None:
        """What a verify of the file's first tables detects."""
        environment = self.database.environment
        tables = [table for table, row in judge.captured(environment).items() if judge.marked(row) is None]
        chosen = [table for table in tables if TableName.parse(table).schema in self.schemas[:3]]
        if not chosen:
            return None
        proofs: list[TableProof] = []
        if error := error_of(lambda: proofs.extend(environment.verify(*chosen).tables)):
            return error
        self.verified += sum(not proof.unproven for proof in proofs)
        return "; ".join(str(proof) for proof in proofs if proof.outcome.differences) or None

    def _end_prepared(self) -> None:
        """Roll back what the steps prepared and left."""
        for (name,) in self.database.environment.query("SELECT gid FROM pg_catalog.pg_prepared_xacts"):
            self.database.environment.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)).as_string())
