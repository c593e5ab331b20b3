"""Objects behind any URI that fsspec knows: `store.Files` over an object store.

A put is durable when it returns and is never seen half, so nothing is synced and nothing renamed. Folders are made
where a file system behind fsspec has them; an object store has none.
"""

from __future__ import annotations

from typing import IO, Any, cast

import fsspec


class Objects:
    """`root` is a URI whose fsspec package is installed."""

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

    def write_atomic(self, target: str, content: bytes) -> None:
        self._make_parent(target)
        self._remote.pipe_file(target, content)

    def open(self, target: str) -> IO[bytes]:
        return cast(IO[bytes], self._remote.open(target, "rb"))

    def exists(self, target: str) -> bool:
        return bool(self._remote.exists(target))

    def size(self, target: str) -> int:
        return int(self._remote.size(target))

    def list(self, target: str) -> list[str]:
        self._remote.invalidate_cache()
        try:
            listed = self._remote.ls(target, detail=False)
        except FileNotFoundError:
            return []
        return [str(name).rstrip("/").rsplit("/", 1)[-1] for name in listed]

    def delete(self, target: str) -> None:
        if self._remote.exists(target):
            self._remote.rm(target, recursive=True)

    def _make_parent(self, target: str) -> None:
        self._remote.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
