"""Starts Debezium's embedded engine on a database, and starts it again after each error, as an operator would.

Before that `clear_the_way` removes what keeps this version from starting. Two ends without progress at the same place,
and the next engine gets `event.processing.failure.handling.mode=warn`, which Debezium's documentation has for that: it
leaves out the events that fail. If that one ends there, too, a new slot takes the place of the old one, and what was
waiting is lost.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from benchmarks import peers
from sandbox.services.postgres import PostgresServer, wait_for
from tests.witnesses.debezium.change_events import ChangeEvents
from tidemark.wait_log import Wait

SLOT: Final = "peer"
# Beside those of `benchmarks.peers`. They favour exact values over short ones.
SETTINGS: Final = {
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "include.unknown.datatypes": "true",
    "skipped.operations": "none",
    "snapshot.mode": "no_data",
    "converter.replace.null.with.default": "false",
    "errors.max.retries": "2",
}
_DONE_S: Final = 240
_LOOK_S: Final = 0.02
_MOST_ENDS: Final = 8


@dataclass
class Engine:
    """`failures` are the errors that ended an engine; `clear_the_way` is called after each, and `take_new_slot` makes a
    slot that begins now."""

    command: list[str]
    server: PostgresServer
    database: str
    folder: Path
    events: ChangeEvents
    take_new_slot: Callable[[], None] = lambda: None
    clear_the_way: Callable[[], None] = lambda: None
    failures: list[str] = field(default_factory=list)
    restarts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _lines: IO[bytes] | None = None
    _rest: bytes = b""
    _stuck: int = 0  # ends one after the other without an event between
    _read: int = 0  # lines since the engine began

    def start(self) -> None:
        """Begin where the last engine ended."""
        self.stop()
        number = self.restarts
        lines, properties = self.folder / f"changes-{number}.json", self.folder / "engine.properties"
        settings = {
            **peers.engine(self.server),
            **SETTINGS,
            "database.dbname": self.database,
            "publication.name": SLOT,
            "converter.schemas.enable": "true",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": 0,
            "poll.interval.ms": 20,
            **({"event.processing.failure.handling.mode": "warn"} if self._stuck >= 2 else {}),
        }
        properties.touch(0o600)
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        script = str(peers.PLAIN / "DebeziumToJson.java")
        java, *options = self.command
        program = [java, "-Duser.timezone=UTC", *options, script, str(properties), str(peers.FOR_EVER), str(lines)]
        with (self.folder / f"engine-{number}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*program, "keys"],
                env={**peers.own_environment(), "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._rest, self._read = b"", 0
        wait_for("the engine's file", lambda: lines.exists() or self._has_ended(), 240)
        self._lines = lines.open("rb") if lines.exists() else None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._lines is not None:
            self._lines.close()
        self._process = self._lines = None

    def wait_for_marker(self, write: Callable[[], int]) -> str | None:
        """Write a marker and take all events up to it; the errors in between, None if there was none.

        After `_MOST_ENDS` ends the rest is left to the next call.
        """
        before, marker, wait = len(self.failures), write(), Wait(_DONE_S, every_s=_LOOK_S)
        while marker not in self.events.markers and len(self.failures) - before < _MOST_ENDS:
            has_ended = self._has_ended()  # then its last lines are there to be taken
            if self._take():
                wait = Wait(_DONE_S, every_s=_LOOK_S)
            elif has_ended or not wait.pause(lambda: "the engine's next event"):
                self._fail("" if has_ended else f"no event for {_DONE_S} s after those before")
                wait = Wait(_DONE_S, every_s=_LOOK_S)
                if self._stuck == 0:
                    marker = write()
        return "; ".join(self.failures[before:]) or None

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _fail(self, why: str) -> None:
        """Note why the engine ended, and start the next one."""
        log = (self.folder / f"engine-{self.restarts}.log").read_text(errors="replace")
        self.failures.append(why or _cause(log))
        self._stuck = 1 if self._read else self._stuck + 1
        self.restarts += 1
        self.stop()
        self.clear_the_way()
        if self._stuck > 3:
            (self.folder / "offsets").unlink(missing_ok=True)
            self.take_new_slot()
            self._stuck = 0
        self.start()

    def _take(self) -> int:
        """Apply the lines that are there; how many."""
        before = self._read
        while self._lines is not None and (read := self._lines.read(1 << 22)):
            *lines, self._rest = (self._rest + read).split(b"\n")
            for line in lines:
                self.events.take(line.decode())
            self._read += len(lines)
        return self._read - before


def _cause(log: str) -> str:
    """The deepest cause in a Java stack trace."""
    causes = [line.removeprefix("Caused by: ") for line in log.splitlines() if line.startswith("Caused by: ")]
    return (causes or log.strip().splitlines() or ["ended without a word"])[-1][:300]
