"""The lock's entries of some packages, hashes included: `python -m sandbox.setup.lock requirements.txt pip setuptools`.

What installs the packages must not be fetched by any other rule than they are; the Dockerfile asks in this way.
Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def entries_of(lock: str, packages: Sequence[str]) -> str:
    """Raises StopIteration if the lock does not have one of them."""
    lines = lock.splitlines()
    entries: list[str] = []
    for package in packages:
        first = next(number for number, line in enumerate(lines) if line.startswith(f"{package}=="))
        last = first
        while lines[last].endswith("\\"):
            last += 1
        entries += lines[first : last + 1]
    return "\n".join(entries) + "\n"


def beyond(entries: str, lock: str) -> str:
    """The entries of another lock, made under this one's constraints, for what this one does not have."""
    names = [line.partition("==")[0] for line in entries.splitlines() if line[:1].isalnum() and "==" in line]
    has = {line.partition("==")[0] for line in lock.splitlines()}
    return entries_of(entries, [name for name in names if name not in has])


if __name__ == "__main__":
    print(entries_of(Path(sys.argv[1]).read_text(), sys.argv[2:]), end="")
