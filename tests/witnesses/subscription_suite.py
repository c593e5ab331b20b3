"""Plays the SQL that PostgreSQL's tests of logical replication send to a publisher, our `current` in the subscriber's
place.

    file ──calls──► psql, one session each ──► source
             └── at each wait_for_catchup: a whole run, and each table that changed is judged; at the end those that
                 are marked are backfilled first

Each file has a schema of its own, in front of its search_path.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from tests.witnesses.captured_database import CapturedDatabase, TableVerdict
from tests.witnesses.perl_script import Call, calls
from tests.witnesses.psql_session import psql_command, psql_environment

EXCLUDED_SCRIPTS: Final[dict[str, str]] = {}
# What would keep every commit of the server waiting for a standby that is not there.
_LEFT_OUT: Final = "ALTER SYSTEM"
# They stand, whatever becomes of the table behind them.
_FAULTS: Final = ("differs", "error", "parked")
_CALL_S: Final = 120


@dataclass
class SubscriptionSuite:
    """`source_tree` is PostgreSQL's; `psql` the program. `kinds` counts the calls, "left out" those that are not
    played though they can be read."""

    source_tree: Path
    database: CapturedDatabase
    psql: Path
    has_trigger: bool = True
    kinds: Counter[str] = field(default_factory=Counter)
    judged: int = 0  # verdicts, at each wait for the subscriber and at each end

    def files(self, chosen: Iterable[str] = ()) -> list[str]:
        names = sorted(file.stem for file in self._folder.glob("*.pl"))
        return [name for name in names if name not in EXCLUDED_SCRIPTS and (not chosen or name in set(chosen))]

    @property
    def _folder(self) -> Path:
        return self.source_tree / "src" / "test" / "subscription" / "t"

    def set_up(self) -> None:
        self.database.begin("FOR ALL TABLES", has_trigger=self.has_trigger)

    def covered(self) -> dict[str, int]:
        """What was played, for the page."""
        return {
            "pieces of SQL for the publisher": self.kinds["sql"] + self.kinds["session"],
            "pieces that only a run of Perl would make": self.kinds["unread"],
            "pieces left out that change the server's settings": self.kinds["left out"],
            "runs where a test waits for its subscriber": self.kinds["catch_up"],
            "comparisons of a table": self.judged,
        }

    def groups(self, chosen: Iterable[str] = ()) -> Iterator[list[str]]:
        """Each file alone."""
        yield from ([name] for name in self.files(chosen))

    def play(self, files: Iterable[str]) -> Iterator[TableVerdict]:
        """Play files, and judge their tables wherever a file waits for its subscriber."""
        for name in files:
            schema = f"subscription_{name}"
            self.database.environment.execute(f"CREATE SCHEMA {schema}")
            verdicts: dict[str, TableVerdict] = {}
            for call in calls((self._folder / f"{name}.pl").read_text()):
                for verdict in self._taken(call, schema, name):
                    _note(verdicts, verdict)
            for verdict in self._at_end(name):
                _note(verdicts, verdict)
            if schema in self.database.environment.sessions:
                self.database.environment.sessions.pop(schema).close()
            yield from verdicts.values()
            self.database.drop_schemas(self.database.schemas_of_files())

    def _taken(self, call: Call, schema: str, file: str) -> Iterator[TableVerdict]:
        is_left_out = _LEFT_OUT in call.sql
        self.kinds["left out" if is_left_out else call.kind] += 1
        if call.kind == "catch_up":
            if error := self.database.run():
                yield TableVerdict(file, "(the run)", "error", error)
            for verdict in self.database.look(lambda _: file):
                self.judged += 1
                yield verdict
        elif call.kind == "session" and not is_left_out:
            with suppress(psycopg.Error):  # the test's own
                self.database.environment.execute(call.sql, session=schema, search_path=schema)
        elif call.kind == "sql" and not is_left_out:
            with psycopg.connect(self.database.environment.source) as connection:
                command = [*psql_command(self.psql, connection.info), "-v", "ON_ERROR_STOP=1", "-f", "-"]
                options = f"-c statement_timeout=60000 -c search_path={schema},public"
                environment = psql_environment(connection.info, options)
            subprocess.run(command, input=call.sql.encode(), env=environment, capture_output=True, timeout=_CALL_S)

    def _at_end(self, file: str) -> Iterator[TableVerdict]:
        self.database.end_prepared()
        if error := self.database.run():
            yield TableVerdict(file, "(the run)", "error", error)
        for verdict in self.database.judge(lambda _: file):
            self.judged += 1
            yield verdict


def _note(verdicts: dict[str, TableVerdict], verdict: TableVerdict) -> None:
    before = verdicts.get(verdict.table)
    if before is None or before.outcome not in _FAULTS:
        verdicts[verdict.table] = verdict
