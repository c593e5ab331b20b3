"""The lake root as a place for files: relative path <-> bytes, on a local disk or any URI that fsspec knows.

R3 calls a batch staged when its files are fsynced, then their folders, and then the ledger row is committed. On a
local disk `create` fsyncs what it wrote, `sync_folders` the folders from the leaf up to the root, and `write_atomic`
does both around a rename, so that a reader sees the whole file or none. An object store offers exactly that for every
object by itself: a put is durable when it returns and is never seen half. Paths are relative to the root, with "/" as
separator, as they stand in ledger, manifest and plan.

On a local disk everything that is written here is for the owner alone, whatever the umask says: rows, plans and keys
are nobody's to read before they are in the lake's tables (which Spark writes). Folders that are there keep their modes,
and one with the setgid bit shares with its group what that may do in it: so Spark may run as another user.
"""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

import fsspec


class Store:
    """One lake root: an absolute local path, a `file://` URI, or another URI whose fsspec package is installed."""

    def __init__(self, root: str) -> None:
        parts = urlsplit(root)
        self.is_local = parts.scheme in ("", "file")
        if self.is_local:
            path = Path(unquote(parts.path) if parts.scheme else root)
            if not path.is_absolute():
                raise ValueError(f"the lake root must be an absolute path or a URI, got {root!r}")
            self.root = str(path)
            self._remote: Any = None
        else:
            self.root = root.rstrip("/")
            self._remote, _ = fsspec.core.url_to_fs(self.root)

    def uri(self, path: str) -> str:
        """The full name of a file, as pyarrow, fsspec and Spark take it: a local path or a URI."""
        return f"{self.root.rstrip('/')}/{_checked(path)}" if path else self.root

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """A new file to write to, durable when the block ends well. Raises
        FileExistsError rather than replace a file."""
        writer = self.open_new(path)
        try:
            yield writer
            self.sync(writer)
        finally:
            writer.close()

    def open_new(self, path: str) -> IO[bytes]:
        """A new file to write to; the caller calls `sync`, then closes. Creates missing folders."""
        target = self.uri(path)
        if self.is_local:
            self._make_folders(Path(target).parent)
            return _create_private(Path(target))
        if self._remote.exists(target):
            raise FileExistsError(target)
        self._make_parent(target)
        return cast(IO[bytes], self._remote.open(target, "wb"))

    def sync(self, file: IO[bytes]) -> None:
        """Make what was written so far durable; on an object store closing does that."""
        file.flush()
        if self.is_local:
            os.fsync(file.fileno())

    def sync_folders(self, folder: str) -> None:
        """Make the entries of all folders below `folder`, of itself and of its parents up to the root durable."""
        if not self.is_local:
            return
        top = Path(self.uri(folder))
        for below, _, _ in os.walk(top, topdown=False):
            _fsync_folder(Path(below))
        root = Path(self.root)
        for parent in top.parents:
            _fsync_folder(parent)
            if parent == root:
                break

    def write_atomic(self, path: str, content: bytes) -> None:
        """Put the whole file in place or none, durably; an existing one is replaced."""
        target = self.uri(path)
        if not self.is_local:
            self._make_parent(target)
            self._remote.pipe_file(target, content)
            return
        final = Path(target)
        self._make_folders(final.parent)
        aside = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        try:
            with _create_private(aside) as out:
                out.write(content)
                self.sync(out)
            aside.rename(final)
        finally:
            aside.unlink(missing_ok=True)
        _fsync_folder(final.parent)

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """An existing file for reading. Raises FileNotFoundError."""
        target = self.uri(path)
        with Path(target).open("rb") if self.is_local else cast(IO[bytes], self._remote.open(target, "rb")) as file:
            yield file

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            return file.read()

    def exists(self, path: str) -> bool:
        target = self.uri(path)
        return Path(target).exists() if self.is_local else bool(self._remote.exists(target))

    def size(self, path: str) -> int:
        target = self.uri(path)
        return Path(target).stat().st_size if self.is_local else int(self._remote.size(target))

    def list(self, folder: str) -> list[str]:
        """The names directly below a folder, sorted; empty where the folder does not exist."""
        target = self.uri(folder)
        if self.is_local:
            try:
                return sorted(entry.name for entry in Path(target).iterdir())
            except FileNotFoundError:
                return []
        self._remote.invalidate_cache()
        try:
            found = self._remote.ls(target, detail=False)
        except FileNotFoundError:
            return []
        return sorted({str(name).rstrip("/").rsplit("/", 1)[-1] for name in found})

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all it holds; nothing happens where there is none."""
        if not path:
            raise ValueError("the lake root itself is never deleted")
        target = self.uri(path)
        if not self.is_local:
            if self._remote.exists(target):
                self._remote.rm(target, recursive=True)
            return
        if Path(target).is_dir():
            shutil.rmtree(target)
        else:
            Path(target).unlink(missing_ok=True)

    def _make_folders(self, folder: Path) -> None:
        """Those that are missing. The root and the pipelines' folders in it hold tables for others to read."""
        open_to_others = {Path(self.root), *(p for p in (folder, *folder.parents) if p.parent == Path(self.root))}
        for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
            if missing in open_to_others or not missing.is_relative_to(self.root):
                missing.mkdir(exist_ok=True)
                continue
            shared = _shared_with_group(missing.parent)
            missing.mkdir(mode=0o700, exist_ok=True)
            if shared:
                missing.chmod(0o2700 | shared)

    def _make_parent(self, target: str) -> None:
        self._remote.makedirs(target.rsplit("/", 1)[0], exist_ok=True)


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        raise ValueError(f"not a path below the lake root: {path!r}")
    return path


def _create_private(path: Path) -> IO[bytes]:
    """A new file that its owner alone can read and write. Raises FileExistsError."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    shared = _shared_with_group(path.parent) & 0o060
    if shared:
        os.fchmod(file.fileno(), 0o600 | shared)
    return file


def _shared_with_group(folder: Path) -> int:
    """What the group may do in a folder with the setgid bit; 0 in any other."""
    mode = folder.stat().st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
