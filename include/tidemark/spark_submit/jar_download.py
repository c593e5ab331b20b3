"""Fetches a set of jars into a folder: copies of the machine's Ivy or Maven cache, else through spark-submit's own Ivy.

Ivy's ordinary settings count: those of spark-defaults.conf (spark.jars.ivySettings, spark.jars.repositories),
DEFAULT_ARTIFACT_REPOSITORY, a local Maven repository, and HTTPS_PROXY. Ivy works in a folder of its own, so no other
process shares its cache. A jar is accepted only if its SHA-256 is the expected one, wherever it comes from.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidemark.errors import JarsDiffer, JarsUnresolved
from tidemark.findings import listed
from tidemark.spark_submit.jar_versions import Jar, JarSet
from tidemark.spark_submit.spark_connection import PROGRAMS
from tidemark.spark_submit.spark_defaults import spark_home

# spark-submit's lines about a dependency that it could not fetch, and the method in its stack trace when it gives up.
_UNRESOLVED: Final = re.compile(r"(?:unresolved dependency|download failed): ([^\s\]]+)")
_GIVES_UP: Final = re.compile(r"MavenUtils\$?\.resolveMavenCoordinates")
# At most so many dependencies are named in an error.
_LISTED: Final = 5


def unresolved(lines: Iterable[str]) -> str | None:
    """The dependencies that spark-submit could not fetch, from its output; None if it failed for another reason."""
    missing: dict[str, None] = {}
    gave_up = False
    for line in lines:
        missing.update(dict.fromkeys(name.rstrip(":,") for name in _UNRESOLVED.findall(line)))
        gave_up = gave_up or _GIVES_UP.search(line) is not None
    return listed(missing, _LISTED) or ("the packages of spark.jars.packages" if gave_up else None)


def fetch(wanted: JarSet, into: Path, environment: Mapping[str, str]) -> list[Jar]:
    """Bring the jars into a folder and return those that were not there. A jar in the folder is replaced by a rename,
    so a driver that starts now reads the old one or the new one.

    Raises JarsUnresolved, JarsDiffer.
    """
    missing = [jar for jar in wanted.jars if sha256(into / jar.file) != jar.sha256]
    if not missing:
        return []
    home = Path(environment.get("HOME", "/nonexistent"))
    kept = {jar: copy for jar in missing if (copy := _kept_by_the_machine(jar, home)) is not None}
    with tempfile.TemporaryDirectory(prefix="tidemark-jars-") as scratch:
        ivy = Path(scratch) / "ivy"
        if len(kept) < len(missing):
            resolve(wanted.roots, wanted.excludes, ivy, environment)
        sources = {jar: kept.get(jar, ivy / "jars" / f"{jar.group}_{jar.name}") for jar in missing}
        wrong = [jar.coordinates for jar, source in sources.items() if sha256(source) != jar.sha256]
        if wrong:
            raise JarsDiffer(jars=", ".join(wrong))
        for jar, source in sources.items():
            _place(source, into / jar.file)
    return missing


def sha256(file: Path) -> str:
    """The file's SHA-256; "" for a file that does not exist."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, beside)
    beside.replace(target)


def _kept_by_the_machine(jar: Jar, home: Path) -> Path | None:
    """A copy of the jar in the cache of Ivy (of Spark 4 and earlier) or Maven; None without one."""
    return next((copy for copy in _places(jar, home) if sha256(copy) == jar.sha256), None)


def _places(jar: Jar, home: Path) -> Iterator[Path]:
    for ivy in sorted(home.glob(".ivy2*")):
        yield ivy / "jars" / f"{jar.group}_{jar.name}"
        yield ivy / "cache" / jar.group / jar.artifact / "jars" / jar.name
    yield home / ".m2" / "repository" / Path(*jar.group.split(".")) / jar.artifact / jar.version / jar.name


def resolve(roots: Sequence[str], excludes: Sequence[str], ivy: Path, environment: Mapping[str, str]) -> None:
    """Fetch the jars into the folder `jars` of an Ivy folder, by a spark-submit of an application that does nothing:
    spark-submit resolves its packages before it starts one. Raises JarsUnresolved."""
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    program = shutil.which(PROGRAMS[0], path=path)
    if program is None:
        raise JarsUnresolved(detail=f"there is no {PROGRAMS[0]} on the PATH, nor beside this Python")
    ivy.mkdir(parents=True, exist_ok=True)
    nothing = ivy / "nothing.py"
    nothing.touch()
    command = [
        *(program, "--master", "local[1]", "--deploy-mode", "client", "--conf", f"spark.jars.ivy={ivy}"),
        *("--packages", ",".join(roots), *(("--exclude-packages", ",".join(excludes)) if excludes else ())),
        str(nothing),
    ]
    flags = [environment.get("SPARK_SUBMIT_OPTS", ""), *_proxy_flags(environment)]
    own = {"PATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if Path(program).parent == Path(sys.executable).parent:
        own["SPARK_HOME"] = str(spark_home(environment))  # pyspark's own search fails in a path with a blank
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**environment, **own, "SPARK_SUBMIT_OPTS": " ".join(filter(None, flags))},
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise JarsUnresolved(detail=unresolved(lines) or _last(lines))


def _last(lines: Sequence[str]) -> str:
    messages = [line for line in lines if not line.startswith("at ")]
    return messages[-1] if messages else "spark-submit printed nothing"


def _proxy_flags(environment: Mapping[str, str]) -> Iterator[str]:
    """Java's properties for the proxy of HTTP_PROXY and HTTPS_PROXY, which Java does not read. A proxy with a password
    is left out; its user sets SPARK_SUBMIT_OPTS."""
    for scheme in ("http", "https"):
        name = f"{scheme}_proxy"
        proxy = urlsplit(environment.get(name) or environment.get(name.upper()) or "")
        if proxy.hostname and not proxy.username:
            yield f"-D{scheme}.proxyHost={proxy.hostname}"
            yield f"-D{scheme}.proxyPort={proxy.port or (443 if proxy.scheme == 'https' else 80)}"
