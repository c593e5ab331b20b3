"""Lets the JVM of a driver on this machine map the classes it needs, instead of reading them from jars.

Loading Spark's classes is about two fifths of the CPU that an application takes to start. The JVM can leave them,
parsed and verified, in an archive when it ends, and map that file the next time (JDK 17 Guide, "Class Data Sharing"):

    no archive ──the first driver, with ArchiveClassesAtExit──► made ──it ended well──► archive of all that follow

One archive per Java and Spark, by what both consist of; after an upgrade the next driver makes another. The JVM itself
checks an archive against its class path and goes on without one that does not fit. So nothing here is needed for a
driver to start: whatever is unusual (no folder of our own, another JVM, flags that somebody chose) means no archive.
So does a folder with files on the class path: the JVM would end its own end with an error ("Cannot have non-empty
directory in paths"), and a driver that did all of its work would exit with 1. The folder of Spark's settings is one.
Where it has nothing but spark-defaults.conf and what a driver of ours does not read, and goes to no executor, the
driver gets that file by `--properties-file`, and an empty folder in its place.
An archive is code, so its folder must be ours alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tidemark.spark_submit.spark_defaults import DEFAULTS, settings_folder, spark_home

log = logging.getLogger(__name__)

FOLDER_VARIABLE = "TIDEMARK_JVM_ARCHIVES"  # where archives lie; set and empty: none is made or used

_OLDEST_JAVA = 17
# What is said of an archive that does not fit is of no use to anybody.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_CHOSEN = re.compile(r"-Xshare|SharedArchiveFile|ArchiveClassesAtExit|AutoCreateSharedArchive")
# A driver that makes an archive and left nothing for so long was killed.
_MAKING_S = 86_400

# A driver's log is configured by a variable or a flag, see `submission.quiet_log`.
_UNREAD = ("log4j2.properties", "*.template")


@dataclass(slots=True)
class ClassArchive:
    """`flags` for the driver's JVM; the block sets `ended_well` where the driver did. `properties_file` and
    `settings_folder` are for spark-submit where Spark's settings must not stand on the class path, else None."""

    flags: str = ""
    ended_well: bool = False
    properties_file: str | None = None
    settings_folder: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of spark-submit."""
        return {} if self.settings_folder is None else {"SPARK_CONF_DIR": self.settings_folder}


@contextmanager
def class_archive(options: str | None, *, ships_settings: bool = False) -> Iterator[ClassArchive]:
    """`options` are the JVM flags that somebody chose for the driver, None if it does not run here; `ships_settings`:
    executors get the files of the settings' folder too. Never raises by itself."""
    archive = ClassArchive()
    path = None
    if options is not None and not _CHOSEN.search(options):
        with suppress(OSError, RuntimeError):  # a file that cannot be read, a user without a home
            place = _path(ships_settings=ships_settings)
            beside = None if place is None else _beside_settings(place.parent)
            if beside is not None:
                path, archive = place, beside
    if path is None:
        yield archive
        return
    if path.is_file():
        archive.flags = f"-XX:SharedArchiveFile={path} {_QUIET}"
        yield archive
        return
    mark, made = path.with_suffix(".making"), path.with_suffix(".made")
    if not _is_first(mark):
        yield archive
        return
    archive.flags = f"-XX:ArchiveClassesAtExit={made} {_QUIET}"
    log.info(
        "The first driver on this machine archives its classes when its work is done, once: some 20 s of this task"
    )
    try:
        yield archive
    finally:
        with suppress(OSError):
            if archive.ended_well and made.is_file():
                for older in path.parent.glob("classes-*.jsa"):
                    older.unlink(missing_ok=True)
                made.rename(path)
            made.unlink(missing_ok=True)
        with suppress(OSError):
            mark.unlink(missing_ok=True)


def _path(*, ships_settings: bool) -> Path | None:
    folder, runtime = _folder(), _runtime()
    if folder is None or runtime is None or re.search(r"\s", str(folder)):
        return None
    if _has_folders_on_class_path(but_settings=not ships_settings):
        return None
    return folder / f"classes-{runtime}.jsa"


def _folder() -> Path | None:
    """Ours, and written by nobody else."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen == "":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(chosen) if chosen else cache / "tidemark"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None


def _has_folders_on_class_path(*, but_settings: bool) -> bool:
    """Whether spark-submit puts a folder with files onto the driver's class path, but for settings that can be set
    aside."""
    named = [os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    named += os.environ.get("SPARK_DIST_CLASSPATH", "").split(os.pathsep)
    folders = [Path(name) for name in named if name and Path(name).is_dir()]
    settings = _settings()
    if but_settings:
        settings = {name for name in settings if name != DEFAULTS and not any(fnmatch(name, u) for u in _UNREAD)}
    return bool(settings) or any(any(folder.iterdir()) for folder in folders)


def _settings() -> set[str]:
    """What lies in the folder of Spark's settings."""
    folder = settings_folder(os.environ)
    return {file.name for file in folder.iterdir()} if folder.is_dir() else set()


def _beside_settings(folder: Path) -> ClassArchive | None:
    """An empty folder of ours in the settings' place, if they have files; None if ours has some too."""
    names = _settings()
    if not names:
        return ClassArchive()
    empty = folder / "no-settings"
    empty.mkdir(mode=0o700, exist_ok=True)
    if any(empty.iterdir()):
        return None
    defaults = str(settings_folder(os.environ) / DEFAULTS) if DEFAULTS in names else None
    return ClassArchive(properties_file=defaults, settings_folder=str(empty))


def _runtime() -> str | None:
    """A digest of Java and Spark as they are here; None if that Java makes no archive on top of its own."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None:
        return None
    java_home = Path(java).resolve().parents[1]
    release = (java_home / "release").read_text()
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    own = java_home / "lib" / "server" / "classes.jsa"
    if version is None or int(version[1]) < _OLDEST_JAVA or not own.is_file():
        return None
    jars = sorted((spark_home(os.environ) / "jars").iterdir())
    parts = [release, *(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_first(mark: Path) -> bool:
    """Whether no other driver makes this archive now."""
    with suppress(OSError):
        if time.time() - mark.stat().st_mtime > _MAKING_S:
            mark.unlink()
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True
