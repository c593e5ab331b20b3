"""Prevents pyarrow from importing pandas in a task's process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def block_pandas_import() -> None:
    """Keep pyarrow from importing pandas in this process; without effect if pandas is imported already.

    pyarrow imports an installed pandas once, to check whether the first converted object belongs to it. That costs more
    than a second of CPU, as much as all other imports of a drain. Only processes of Tidemark may call this: pyarrow
    cannot make data frames afterwards.
    """
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        import pyarrow

        pyarrow.array([])
    finally:
        sys.meta_path.remove(absent)


class _Absent:
    """A finder that reports pandas as missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ImportError(name)
        return None
