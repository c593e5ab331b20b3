"""A disk of one megabyte, to be filled: a file system of its own in memory, which only root can mount."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)

    def fill(self) -> None:
        with (self.folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert shutil.disk_usage(self.folder).free == 0

    def resize(self, size: str) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)
