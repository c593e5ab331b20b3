"""A small set of inputs for each decoder, from the last `--keep`: lines of base64 in tests/fuzzing/corpora."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "corpora"


def kept(name: str) -> list[bytes]:
    return [base64.b64decode(line) for line in (_FOLDER / f"{name}.txt").read_text().splitlines()]


def keep(name: str, contents: Iterable[bytes]) -> None:
    """In place of those that are there: the shortest first."""
    lines = [base64.b64encode(content).decode() for content in sorted(contents, key=lambda one: (len(one), one))]
    (_FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
