"""Plays PostgreSQL's regression tests, file by file, in one captured database.

    setup ──► file ──piece of SQL──► psql ──now and then──► a run's drain
                │
                └── at its end: a whole run, and each table of the database judged: `TableVerdict`

A table without a key gets REPLICA IDENTITY FULL as soon as it is created, since PostgreSQL refuses UPDATE and DELETE of
a published table without an identity. What the files need of PostgreSQL's C test modules fails at the source.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from random import Random
from threading import Thread
from typing import IO, Final

import psycopg

from tests.support import judge
from tests.support.capture import Environment
from tests.witnesses.psql_script import pieces
from tidemark.errors import TidemarkError

# Files that need what no captured database has: why they are left out.
EXCLUDED: Final = {
    "psql": "waits at psql's own prompts and pagers, and changes no table",
    "psql_crosstab": "shows results of psql alone",
    "psql_pipeline": "shows results of psql alone",
    "test_setup": "played first, by name",
    "stats": "waits for statistics that a server without autovacuum does not write",
    "subscription": "subscribes to servers that are not there",
    "tablespace": "needs folders of its own on the server",
    "maintain_every": "is a script of the build farm",
}

_FULL_IDENTITY: Final = """
CREATE FUNCTION public.give_identity() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE one record;
BEGIN
    FOR one IN SELECT c.oid::regclass AS name
                 FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
                WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
                  AND c.relreplident = 'd'
                  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', one.name);
    END LOOP;
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
CREATE EVENT TRIGGER give_identity ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION public.give_identity();
"""


def _pass_on(stream: IO[bytes], lines: Queue[str]) -> None:
    """Each line of the stream, and "" at its end."""
    for line in stream:
        lines.put(line.decode(errors="replace"))
    lines.put("")


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What became of one table by the end of a file: "equal"; "repaired" by a backfill after a mark; still
    "marked"; "parked"; "differs"; "error"."""

    file: str
    table: str
    outcome: str
    reason: str = ""


@dataclass
class RegressionSuite:
    """`source_tree` is PostgreSQL's; `psql` the program; `pauses` how often a file stops for a drain."""

    source_tree: Path
    environment: Environment
    psql: Path
    seed: int = 0
    pauses: int = 3
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)

    def files(self, chosen: Iterable[str] = ()) -> list[str]:
        """The files in the order of `parallel_schedule`, without those that are excluded."""
        schedule = (self._folder / "parallel_schedule").read_text().splitlines()
        groups = [line.partition(":")[2].split() for line in schedule if line.startswith("test:")]
        names = dict.fromkeys(name for group in groups for name in group if name not in EXCLUDED)
        return [name for name in names if not chosen or name in set(chosen)]

    @property
    def _folder(self) -> Path:
        return self.source_tree / "src" / "test" / "regress"

    def set_up(self) -> None:
        """Open the capture of an empty database, then play what all files build on."""
        self.environment.execute(_FULL_IDENTITY, "CREATE TABLE public.witness_start (id int PRIMARY KEY)")
        self.environment.begin()
        self._run()
        self._play("test_setup", pauses=0)
        self._run()

    def play(self, name: str) -> Iterator[TableVerdict]:
        """Play a file, with drains between its statements, and judge what it changed."""
        error = self._play(name, self.pauses) or self._run()
        if error:
            yield TableVerdict(name, "(the run)", "error", error)
            return
        verdicts = list(self._verdicts(name))
        marks = {verdict.table: verdict.reason for verdict in verdicts if verdict.outcome == "marked"}
        if marks and (error := self._repair()):
            yield TableVerdict(name, "(the backfill)", "error", error)
        for verdict in self._verdicts(name) if marks else ():
            if verdict.outcome == "equal" and verdict.table in marks:
                verdict = TableVerdict(name, verdict.table, "repaired", marks[verdict.table])
            verdicts = [*(v for v in verdicts if v.table != verdict.table), verdict]
        yield from verdicts

    def _play(self, name: str, pauses: int) -> str | None:
        """Why a drain between statements failed; None where none did."""
        script = (self._folder / "sql" / f"{name}.sql").read_text(errors="surrogateescape")
        parts = list(pieces(script))
        stops = set(Random(f"{self.seed} {name}").sample(range(len(parts)), min(pauses, len(parts))))
        with psycopg.connect(self.environment.source) as connection:
            info = connection.info
            environment = {
                **os.environ,
                "PGPASSWORD": info.password,
                "PGOPTIONS": "-c statement_timeout=60000 -c intervalstyle=postgres_verbose",
                "PGDATESTYLE": "Postgres, MDY",
                "PGTZ": "America/Los_Angeles",
                "PG_ABS_SRCDIR": str(self._folder),
                "PG_ABS_BUILDDIR": "/tmp",
                "PG_LIBDIR": "/nowhere",
                "PG_DLSUFFIX": ".so",
            }
            command = [str(self.psql), "-X", "-q", "-h", info.host, "-p", str(info.port)]
            command += ["-U", info.user, "-d", info.dbname]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stderr is not None
        lines: Queue[str] = Queue()
        # Read all the time: psql waits as soon as the pipe is full of errors.
        reader = Thread(target=_pass_on, args=(process.stderr, lines), daemon=True)
        reader.start()
        failed = None
        try:
            for number, part in enumerate(parts):
                process.stdin.write(part.encode(errors="surrogateescape"))
                if number in stops:
                    mark = f"witness {number}"
                    process.stdin.write(f"\n\\warn {mark}\n".encode())
                    process.stdin.flush()
                    while (line := lines.get(timeout=300)) and mark not in line:
                        pass
                    failed = failed or self._drain()
            process.stdin.close()
            reader.join(timeout=300)
        except BrokenPipeError:  # the script said \quit
            pass
        finally:
            process.kill()
            process.wait()
        return failed

    def _drain(self) -> str | None:
        try:
            self.environment.begin_run()
            self.environment.drain()
        except TidemarkError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _run(self) -> str | None:
        try:
            self.environment.run()
        except TidemarkError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _verdicts(self, file: str) -> Iterator[TableVerdict]:
        """The tables that the file changed, or whose state it changed."""
        at_source = self._at_source()
        for table, row in judge.captured(self.environment).items():
            if (called := str(judge.called(self.environment, table))) not in at_source:
                continue
            state = judge.marked(row) or ""
            history = judge.read(self.environment, "history", table)
            version = "" if history is None else str(history.version)
            if self.judged.get(table) == (state, version):
                continue
            self.judged[table] = state, version
            if state:
                yield TableVerdict(file, called, "parked" if row.life.is_parked else "marked", state)
                continue
            wrongs = judge.current_equals_source(self.environment, table)
            wrongs += judge.history_leads_to_current(self.environment, table)
            yield TableVerdict(file, called, "differs" if wrongs else "equal", "; ".join(wrongs)[:1000])

    def _at_source(self) -> set[str]:
        """Those with a column at least: of the others there is nothing to compare."""
        rows = self.environment.sql("SELECT schemaname, tablename FROM pg_publication_tables WHERE attnames <> '{}'")
        return {f"{schema}.{name}" for schema, name in rows}

    def _repair(self) -> str | None:
        """Backfill what is marked; why that failed, None where it did not. A table that is built anew can be read from
        the next run on."""
        return self._run() or self._backfill() or self._run()

    def _backfill(self) -> str | None:
        try:
            self.environment.backfill()
        except TidemarkError as error:
            return f"{type(error).__name__}: {error}"
        return None
