"""Makes the folder that a driver on this machine reads: the library as a zip file, and a key of the lake.

It goes with the block. A task that is killed by force leaves it, a key in it perhaps, and the next task that starts a
driver here removes it. Its owner holds a lock on a file in it; the kernel lets go of that when the owner dies,
whichever container it ran in, and no process that it started has it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "tidemark-driver-"
_HELD: Final = "held"  # the file with the lock; it is there once it is locked


@contextmanager
def driver_folder() -> Iterator[Path]:
    """A folder that nobody else may read; those of tasks that were killed are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_HELD}"):
        with suppress(OSError):  # another user's, or its owner removes it now
            _remove_unless_held(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        with (folder / f"{_HELD}.new").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(file.name, folder / _HELD)
            yield folder


def _remove_unless_held(held: Path) -> None:
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(held.parent)
