"""Opens the lake root as a store of files: relative path <-> bytes, on a disk or in an object store.

R3 calls a batch staged when its files are fsynced, then their folders, and then the ledger row is committed. `Files` is
the interface that each kind of storage implements: `disk`, `object_store`. Paths are relative to the root, with "/" as
separator, as in ledger, manifest and plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit

from tidemark.errors import StoreClientMissing
from tidemark.storage.disk import DiskFiles
from tidemark.storage.lake_access import LakeAccess

if TYPE_CHECKING:
    from tidemark.storage.object_store import BucketTraits

OBJECT_STORES: Final = ("s3a", "gs", "abfss")
MACHINES_OWN: Final = LakeAccess()


class Files(Protocol):
    """One kind of storage. Every `target` is a full name: a local path or a URI."""

    file_bytes: int
    """At which size a staged file shall end."""

    def open_new(self, target: str) -> IO[bytes]:
        """Open a new file, and create missing folders. An existing file is not replaced: this raises
        FileExistsError, or `sync_folders` does."""

    def sync(self, file: IO[bytes]) -> None:
        """Mark the file as complete. After it is closed, `sync_folders` makes it durable. A file that is closed
        without this call is abandoned."""

    def sync_folders(self, target: str) -> None:
        """Make all complete files below the folder durable, and the entries of all folders below it, of itself and
        of its parents up to the root."""

    def write_new(self, target: str, content: bytes) -> None:
        """Write the whole file durably, or nothing. Raises FileExistsError if the file exists."""

    def write_atomic(self, target: str, content: bytes) -> None:
        """Write the whole file durably, or nothing; an existing file is replaced."""

    def open(self, target: str) -> IO[bytes]:
        """Open an existing file for reading. Raises FileNotFoundError."""

    def exists(self, target: str) -> bool: ...

    def size(self, target: str) -> int:
        """The file's size in bytes. Raises FileNotFoundError."""

    def list(self, target: str, at_or_above: str) -> list[str]:
        """The present names directly below a folder, in any order; empty if there is no folder. Names below the
        given one may be left out if that costs less."""

    def list_from(self, target: str, first: str, at_or_above: str) -> Iterable[tuple[str, str]]:
        """The folders directly below one, from the name `first` on, each once per name directly below it. Names in
        `first` below the second name may be left out if that costs less."""

    def delete(self, target: str) -> None:
        """Delete a file, or a folder with its content; nothing happens if neither exists."""


class Store:
    """One lake root: an absolute local path, a `file://` URI, or the URI of an object store, whose credentials `access`
    has. Raises StoreClientMissing."""

    def __init__(self, root: str, access: LakeAccess = MACHINES_OWN) -> None:
        uri = urlsplit(root)
        self._files: Files
        if uri.scheme in ("", "file"):
            path = Path(unquote(uri.path) if uri.scheme else root)
            if not path.is_absolute():
                raise ValueError(f"the lake root must be an absolute path or a URI, got {root!r}")
            self.root = str(path)
            self._files = DiskFiles(self.root)
        elif uri.scheme in OBJECT_STORES:
            self.root = root.rstrip("/")
            try:
                from tidemark.storage.object_store import ObjectStoreFiles
            except ImportError:
                raise StoreClientMissing(lake=self.root) from None

            self._files = ObjectStoreFiles(self.root, access)
        else:
            raise ValueError(f"a lake root is a folder, or lies in {', '.join(OBJECT_STORES)}: {root!r}")

    @property
    def file_bytes(self) -> int:
        """The size in bytes at which a staged file is closed."""
        return self._files.file_bytes

    def uri(self, path: str) -> str:
        """The full name of a file for pyarrow, fsspec and Spark: a local path or a URI."""
        return f"{self.root.rstrip('/')}/{_checked(path)}" if path else self.root

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing. It is complete if the block ends without an error, and durable after
        `sync_folders`."""
        writer = self.open_new(path)
        try:
            yield writer
            self.sync(writer)
        finally:
            writer.close()

    def open_new(self, path: str) -> IO[bytes]:
        """Open a new file for writing. The caller calls `sync` and closes it, or closes it without `sync` to
        abandon it."""
        return self._files.open_new(self.uri(path))

    def sync(self, file: IO[bytes]) -> None:
        """Mark the file as complete."""
        self._files.sync(file)

    def sync_folders(self, folder: str) -> None:
        """Make all complete files below `folder` durable, and the entries of all folders up to the root. Raises
        FileExistsError if one of them would have replaced a file."""
        self._files.sync_folders(self.uri(folder))

    def write_new(self, path: str, content: bytes) -> None:
        """Write the whole file durably, or nothing. Raises FileExistsError if the file exists."""
        self._files.write_new(self.uri(path), content)

    def write_atomic(self, path: str, content: bytes) -> None:
        """Write the whole file durably, or nothing; an existing file is replaced."""
        self._files.write_atomic(self.uri(path), content)

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """Open an existing file for reading. Raises FileNotFoundError."""
        with self._files.open(self.uri(path)) as file:
            yield file

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return self._files.exists(self.uri(path))

    @property
    def is_bucket(self) -> bool:
        return urlsplit(self.root).scheme in OBJECT_STORES

    def check_bucket(self, paths: Sequence[str]) -> BucketTraits:
        """Test the lake's bucket with objects at these paths, and return its traits. Raises LakeUnfit."""
        from tidemark.storage.object_store import ObjectStoreFiles

        assert isinstance(self._files, ObjectStoreFiles)
        return self._files.check_bucket([self.uri(path) for path in paths])

    def size(self, path: str) -> int:
        return self._files.size(self.uri(path))

    def list_from(self, folder: str, first: str, at_or_above: str) -> dict[str, list[str]]:
        """The folders directly below one, from the name `first` on, with the sorted names below each; in `first`
        only from a given name on. On an object store this is one listing."""
        names: dict[str, set[str]] = {}
        for below, name in self._files.list_from(self.uri(folder), first, at_or_above):
            if below > first or (below == first and name >= at_or_above):
                names.setdefault(below, set()).add(name)
        return {below: sorted(names[below]) for below in sorted(names)}

    def list(self, folder: str, at_or_above: str = "") -> list[str]:
        """The names directly below a folder, sorted, from a name on; empty if the folder does not exist."""
        names = self._files.list(self.uri(folder), at_or_above)
        return sorted({name for name in names if name >= at_or_above})

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all it holds; nothing happens if there is none."""
        if not path:
            raise ValueError("the lake root itself is never deleted")
        self._files.delete(self.uri(path))


def _checked(path: str) -> str:
    names = PurePosixPath(path).parts
    if path.startswith("/") or ".." in names:
        raise ValueError(f"not a path below the lake root: {path!r}")
    return path
