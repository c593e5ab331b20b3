"""Makes system calls of chosen processes fail, and moves their clocks, by a library that they load (`system_faults.c`).

A process that starts with `SystemFaults.environment` follows what the test orders meanwhile. The library is compiled
here; without a C compiler the tests fail with a message, since they would prove nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import shutil
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

from sandbox.services.postgres import OUTSIDE, make_outside

SOURCE: Final = Path(__file__).with_name("system_faults.c")
_ORDERS: Final = struct.Struct("=7q512s")
_CLOCK, _COUNTS = struct.Struct("=q"), struct.Struct("=qq")
_SEEN_AT: Final = 5 * 8


class Call(IntFlag):
    """Kinds of system calls on files: fsync and fdatasync; write; a file that is created; rename and link; mkdir."""

    SYNC = 1
    WRITE = 2
    CREATE = 4
    NAME = 8
    FOLDER = 16


ANY = Call.SYNC | Call.WRITE | Call.CREATE | Call.NAME | Call.FOLDER


@dataclass(frozen=True, slots=True)
class MovableClock:
    """The clock of the processes that follow these orders. Any process may move it."""

    orders: Path

    def move(self, seconds: int) -> None:
        """Let it be so far from the machine's."""
        with self.orders.open("r+b") as file:
            file.write(_CLOCK.pack(seconds))


class SystemFaults:
    """What one group of processes is ordered. `folder` keeps the library and the orders, and is readable for all."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.library = folder / "system_faults.so"
        self.notes = folder / "notes"
        self._orders = folder / "orders"
        _compile(self.library)
        self._orders.write_bytes(bytes(_ORDERS.size))
        self._orders.chmod(0o666)  # a server runs as another user
        with self._orders.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _ORDERS.size)

    @property
    def environment(self) -> dict[str, str]:
        """With this the processes load the library."""
        return {"LD_PRELOAD": str(self.library), "TIDEMARK_SYSTEM_FAULTS": str(self._orders)}

    @property
    def noted(self) -> dict[str, str]:
        """With this they also write down which files they create, write, sync, rename and remove."""
        return {**self.environment, "TIDEMARK_SYSTEM_NOTES": str(self.notes)}

    @contextmanager
    def process(self) -> Iterator[ProcessPoolExecutor]:
        """One process of Python that follows the orders and writes notes: what is submitted runs there."""
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self.noted.items():
                    patch.setenv(name, value)
                pool.submit(os.getpid).result()
            yield pool

    @property
    def clock(self) -> MovableClock:
        return MovableClock(self._orders)

    @contextmanager
    def failing(
        self, calls: Call, folder: Path | str, at: int = 1, error: int = errno.EIO, *, lasting: bool = False
    ) -> Iterator[None]:
        """Within the block the call of that number on files below the folder fails, from 1, and all after it if the
        fault is lasting. Number 0 fails none: they are counted."""
        self._order(calls, at, lasting, error, 0, 0, str(folder).encode())
        try:
            yield
        finally:
            seen, failed = self.seen, self.failed
            self._order(Call(0), 0, False, 0, seen, failed, b"")

    def note_below(self, folder: Path | str) -> None:
        """From now on, write down what happens to files there."""
        self._order(Call(0), 0, False, 0, 0, 0, str(folder).encode())

    def _order(self, calls: Call, at: int, lasting: bool, error: int, seen: int, failed: int, folder: bytes) -> None:
        (clock,) = _CLOCK.unpack_from(self._shared)
        _ORDERS.pack_into(self._shared, 0, clock, calls, at, lasting, error, seen, failed, folder)

    @property
    def seen(self) -> int:
        """The number of calls that were counted in the last block."""
        return int(_COUNTS.unpack_from(self._shared, _SEEN_AT)[0])

    @property
    def failed(self) -> int:
        """The number of calls that failed in it."""
        return int(_COUNTS.unpack_from(self._shared, _SEEN_AT)[1])


@contextmanager
def for_any_user() -> Iterator[SystemFaults]:
    """Orders that a server's user can read, who has no access to the folders of pytest."""
    folder = make_outside(OUTSIDE / f"tidemark-faults-{secrets.token_hex(6)}", (os.geteuid(), os.getegid()), 0o755)
    try:
        yield SystemFaults(folder)
    finally:
        shutil.rmtree(folder)


def _compile(library: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail("this test makes system calls fail by a library of its own, and there is no C compiler (cc, gcc)")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE)]
    done = subprocess.run([*command, "-ldl"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"{SOURCE.name} cannot be compiled here:\n{done.stderr}")


def durable(notes: Path) -> tuple[set[str], set[str]]:
    """What a loss of power now would leave for sure of the files in the notes, and all that are there without one.

    A name is durable once its folder was synced behind it, a file's content once the file was. Nothing else is: of a
    file that was written after its last fsync, nothing counts."""
    synced_content: set[str] = set()
    names: dict[str, bool] = {}  # path -> whether its name is durable
    for line in notes.read_text().splitlines():
        what, path, target = line.split("\t")
        if what in ("create", "folder"):
            names.setdefault(path, False)
            if what == "folder":
                synced_content.add(path)
        elif what == "write":
            synced_content.discard(path)
        elif what == "sync":
            synced_content.add(path)
            for name in names:
                if os.path.dirname(name) == path:
                    names[name] = True
        elif what in ("rename", "link"):
            for one in [name for name in names if name == path or name.startswith(f"{path}/")]:
                new = target + one.removeprefix(path)
                names[new] = False if one == path else names[one]
                if one in synced_content:
                    synced_content.add(new)
                if what == "rename":
                    del names[one]
        elif what == "unlink":
            names.pop(path, None)
    whole = {name for name in names if name in synced_content and _has_durable_names(name, names)}
    return whole, set(names)


def _has_durable_names(path: str, names: dict[str, bool]) -> bool:
    """Of the file and of each folder above it that the processes created."""
    above = [path, *(str(folder) for folder in Path(path).parents)]
    return all(names.get(one, True) for one in above)
