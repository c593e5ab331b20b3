"""Prevents pyarrow from importing pandas in a task's process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def block_pandas_import() -> None:
    """Keep pyarrow from importing pandas in this process, for good; nothing happens where somebody has imported it.

    pyarrow imports it, if it is installed, to find out whether the first thing that is made an array is one of its
    objects: more than a second of CPU, as much as everything else that a drain imports. To be called by processes that
    belong to Tidemark: pyarrow looks once, and makes no data frames afterwards.
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
    """A finder that knows of no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ImportError(name)
        return None
