"""The machine -> the home of a Java that Spark 4.2 runs on, installed if need be. Standard library only.

Spark's documentation names 17 and 21 ("Overview", Downloading); 17 is what Tidemark is tested with, and is taken first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandbox.setup.system_packages import PackageManager

VERSIONS = (17, 21)
_USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*",
    "/usr/local/opt/openjdk@*",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


# The names of Java's packages, by package manager.
_PACKAGES = {
    "apt-get": "openjdk-{}-jre-headless",
    "apk": "openjdk{}-jre-headless",
    "pacman": "jre{}-openjdk-headless",
    "brew": "openjdk@{}",
}


def packages(manager: PackageManager) -> list[str]:
    """What to install, in the order to try: distributions drop old versions."""
    return [_PACKAGES.get(manager.program, "java-{}-openjdk-headless").format(version) for version in VERSIONS]


def version(home: Path) -> int | None:
    """The major version of the Java in `home`, from its `release` file or by asking it; None if there is no Java."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.exists() else ""
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    if match is None:
        try:
            answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _homes(env: Mapping[str, str], places: tuple[str, ...]) -> Iterator[Path]:
    if env.get("JAVA_HOME"):
        yield Path(env["JAVA_HOME"])
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for place in places:
        pattern = Path(place.replace("~", env.get("HOME", "/nonexistent"), 1))
        fixed = Path(*pattern.parts[: _first_glob(pattern)])
        yield from sorted(fixed.glob(str(pattern.relative_to(fixed))))


def _first_glob(pattern: Path) -> int:
    return next(i for i, folder in enumerate(pattern.parts) if "*" in folder)


def find(env: Mapping[str, str], places: tuple[str, ...] = _USUAL_PLACES) -> Path | None:
    """The home of the first usable Java: JAVA_HOME, PATH, the usual places; version 17 anywhere before 21 anywhere."""
    homes = [(home, version(home)) for home in _homes(env, places)]
    for number in VERSIONS:
        for home, has in homes:
            if has == number:
                return home.absolute()
    return None


def advice(manager: PackageManager | None) -> str:
    """One sentence with the command to type."""
    if manager is None:
        return "Spark needs Java 17: install it and set JAVA_HOME to its folder, then call make again."
    return f"Spark needs Java 17: type `{manager.command(packages(manager)[0])}`, then call make again."
