"""Implements `store.Files` on any other URI that fsspec supports, such as HDFS, as far as fsspec can. Not tested.

fsspec has no put-if-absent, so a new file is checked for just before it is written. A partly written file is never
recorded (R4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, cast

import fsspec


class Remote:
    """Stores files by fsspec. `root` is a URI whose fsspec package is installed."""

    file_bytes = 512 * 2**20

    def __init__(self, root: str) -> None:
        self._remote: Any = fsspec.core.url_to_fs(root)[0]

    def open_new(self, target: str) -> IO[bytes]:
        if self._remote.exists(target):
            raise FileExistsError(target)
        self._make_parent(target)
        return cast(IO[bytes], self._remote.open(target, "wb"))

    def sync(self, file: IO[bytes]) -> None:
        file.flush()  # closing makes it durable

    def sync_folders(self, target: str) -> None:
        pass

    def write_new(self, target: str, content: bytes) -> None:
        with self.open_new(target) as file:
            file.write(content)

    def write_atomic(self, target: str, content: bytes) -> None:
        self._make_parent(target)
        self._remote.pipe_file(target, content)

    def open(self, target: str) -> IO[bytes]:
        return cast(IO[bytes], self._remote.open(target, "rb"))

    def exists(self, target: str) -> bool:
        return bool(self._remote.exists(target))

    def size(self, target: str) -> int:
        return int(self._remote.size(target))

    def list(self, target: str, at_or_above: str) -> list[str]:
        self._remote.invalidate_cache()
        try:
            listed = self._remote.ls(target, detail=False)
        except FileNotFoundError:
            return []
        return [str(name).rstrip("/").rsplit("/", 1)[-1] for name in listed]

    def list_from(self, target: str, first: str, at_or_above: str) -> Iterator[tuple[str, str]]:
        for below in self.list(target, first):
            if below >= first:
                yield from ((below, name) for name in self.list(f"{target}/{below}", ""))

    def delete(self, target: str) -> None:
        if self._remote.exists(target):
            self._remote.rm(target, recursive=True)

    def _make_parent(self, target: str) -> None:
        self._remote.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
