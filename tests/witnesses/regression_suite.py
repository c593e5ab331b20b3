"""Plays PostgreSQL's regression tests, file by file, in one captured database.

    setup ──► file ──piece of SQL──► psql ──now and then──► a run's drain
                │
                └── at its end: a whole run, and each table of the database judged: `TableVerdict`

What the files need of PostgreSQL's C test modules fails at the source.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from random import Random
from threading import Thread
from typing import IO, Final

import psycopg

from tests.witnesses.captured_database import CapturedDatabase, TableVerdict
from tests.witnesses.psql_script import pieces
from tests.witnesses.psql_session import psql_command, psql_environment

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


def _pass_on(stream: IO[bytes], lines: Queue[str]) -> None:
    """Each line of the stream, and "" at its end."""
    for line in stream:
        lines.put(line.decode(errors="replace"))
    lines.put("")


@dataclass
class RegressionSuite:
    """`source_tree` is PostgreSQL's; `psql` the program; `pauses` how often a file stops for a drain."""

    source_tree: Path
    database: CapturedDatabase
    psql: Path
    seed: int = 0
    has_trigger: bool = True
    pauses: int = 3
    played: int = 0  # files
    pieces: int = 0  # of SQL that psql takes at once
    drains: int = 0  # between two pieces

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
        self.database.begin("FOR ALL TABLES", has_trigger=self.has_trigger)
        self._play("test_setup", pauses=0)
        self.database.run()

    def covered(self) -> dict[str, int]:
        """What was played, for the page."""
        return {"files": self.played, "pieces of SQL": self.pieces, "drains between two pieces": self.drains}

    def groups(self, chosen: Iterable[str] = ()) -> Iterator[list[str]]:
        """Each file alone."""
        yield from ([name] for name in self.files(chosen))

    def play(self, files: Iterable[str]) -> Iterator[TableVerdict]:
        """Play files, each with drains between its statements, and judge what it changed."""
        for name in files:
            for error in (self._play(name, self.pauses), self.database.run()):
                if error is not None:
                    yield TableVerdict(name, "(the run)", "error", error)
            yield from self.database.judge(lambda _, name=name: name)

    def _parts(self, name: str) -> list[str]:
        return list(pieces((self._folder / "sql" / f"{name}.sql").read_text(errors="surrogateescape")))

    def _options(self, name: str) -> str:
        """Settings of a file's session."""
        return "-c intervalstyle=postgres_verbose"

    def _play(self, name: str, pauses: int) -> str | None:
        """Why a drain between statements failed; None where none did."""
        parts = self._parts(name)
        self.played += 1
        self.pieces += len(parts)
        stops = set(Random(f"{self.seed} {name}").sample(range(len(parts)), min(pauses, len(parts))))
        with psycopg.connect(self.database.environment.source) as connection:
            environment = {
                **psql_environment(connection.info, f"-c statement_timeout=60000 {self._options(name)}"),
                "PG_ABS_SRCDIR": str(self._folder),
                "PG_ABS_BUILDDIR": "/tmp",
                "PG_LIBDIR": "/nowhere",
                "PG_DLSUFFIX": ".so",
            }
            command = psql_command(self.psql, connection.info)
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
                    self.drains += 1
                    failed = failed or self.database.drain()
            process.stdin.close()
            reader.join(timeout=300)
        except BrokenPipeError:  # the script said \quit
            pass
        finally:
            process.kill()
            process.wait()
        return failed
