"""Implements `store.Files` on a local disk, by absolute path.

Files are fsynced, then their folders, because writes and new names are in the page cache first. A file that must appear
whole is written under another name and renamed.

New files are readable only by their owner, independent of the umask: they hold rows, plans and keys. Existing folders
keep their modes. A folder with the setgid bit shares new files with its group, so that Spark can run as another user.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from tidemark.unexpected_errors import disk_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# How often a folder is deleted in which something is written meanwhile.
DELETIONS: Final = 5


class DiskFiles:
    """Stores files on a local disk. `root` is the lake's root, where `sync_folders` ends."""

    file_bytes = 512 * 2**20

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def open_new(self, target: str) -> IO[bytes]:
        with self._disk_errors():
            self._make_folders(Path(target).parent)
            return self._create_private(Path(target))

    def sync(self, file: IO[bytes]) -> None:
        with self._disk_errors():
            file.flush()
            os.fsync(file.fileno())

    def sync_folders(self, target: str) -> None:
        top = Path(target)
        with self._disk_errors():
            for below, _, _ in os.walk(top, topdown=False):
                _fsync_folder(Path(below))
            self._sync_parents(top)

    def write_new(self, target: str, content: bytes) -> None:
        with self._disk_errors():
            self._write_whole(Path(target), content, _link)

    def write_atomic(self, target: str, content: bytes) -> None:
        with self._disk_errors():
            self._write_whole(Path(target), content, Path.rename)

    def _write_whole(self, final: Path, content: bytes, put: Callable[[Path, Path], object]) -> None:
        self._make_folders(final.parent)
        aside = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        try:
            with self._create_private(aside) as out:
                out.write(content)
                self.sync(out)
            put(aside, final)
        finally:
            aside.unlink(missing_ok=True)
        self._sync_parents(final)

    def _sync_parents(self, path: Path) -> None:
        """Make the names of the path and of all folders above it durable, up to the root. A try that died may have
        created any of them."""
        for parent in path.parents:
            _fsync_folder(parent)
            if parent == self._root:
                break

    def open(self, target: str) -> IO[bytes]:
        return Path(target).open("rb")

    def exists(self, target: str) -> bool:
        return Path(target).exists()

    def size(self, target: str) -> int:
        return Path(target).stat().st_size

    def list(self, target: str, at_or_above: str) -> list[str]:
        try:
            return os.listdir(target)
        except FileNotFoundError:
            return []

    def list_from(self, target: str, first: str, at_or_above: str) -> Iterator[tuple[str, str]]:
        for below in self.list(target, first):
            if below >= first and os.path.isdir(f"{target}/{below}"):
                yield from ((below, name) for name in self.list(f"{target}/{below}", ""))

    def delete(self, target: str) -> None:
        if not Path(target).is_dir():
            Path(target).unlink(missing_ok=True)
            return
        for left in reversed(range(DELETIONS)):
            try:
                shutil.rmtree(target)
            except FileNotFoundError:  # somebody else deletes it, too
                pass
            except OSError as failed:  # a task that lost its lease still writes into it
                if failed.errno != errno.ENOTEMPTY or not left:
                    raise
            if not Path(target).exists():
                return

    def _create_private(self, path: Path) -> IO[bytes]:
        """Create a file that only its owner can read and write. Raises FileExistsError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        shared = _shared_with_group(path.parent) & 0o060
        if shared:
            os.fchmod(descriptor, 0o600 | shared)
        return io.BufferedWriter(_LakeFile(descriptor, self._disk_errors))

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raises DiskFull for a full disk or an exhausted quota, DiskFailed for a disk that failed."""
        try:
            yield
        except OSError as failed:
            if (error := disk_error(failed, f"the lake {self._root}")) is None:
                raise
            raise error from None

    def _make_folders(self, folder: Path) -> None:
        """Create missing folders. The root and the pipelines' folders in it hold tables for other readers."""
        open_to_others = {self._root, *(p for p in (folder, *folder.parents) if p.parent == self._root)}
        for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
            if missing in open_to_others or not missing.is_relative_to(self._root):
                missing.mkdir(exist_ok=True)
                continue
            shared = _shared_with_group(missing.parent)
            missing.mkdir(mode=0o700, exist_ok=True)
            if shared:
                missing.chmod(0o2700 | shared)


class _LakeFile(io.FileIO):
    """A file whose writes all run in a block of `disk_errors`, also when its buffer is emptied."""

    def __init__(self, descriptor: int, disk_errors: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(descriptor, "wb")
        self._disk_errors = disk_errors

    def write(self, content: ReadableBuffer, /) -> int:
        with self._disk_errors():
            return super().write(content)


def _link(aside: Path, final: Path) -> None:
    """Give the file a second name. Raises FileExistsError. A file system without hard links cannot refuse an
    existing name, so the name is checked before."""
    try:
        final.hardlink_to(aside)
    except FileExistsError:
        raise
    except OSError:
        if final.exists():
            raise FileExistsError(str(final)) from None
        aside.rename(final)


def _shared_with_group(folder: Path) -> int:
    """The group's permissions in a folder with the setgid bit; 0 in other folders."""
    mode = folder.stat().st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
