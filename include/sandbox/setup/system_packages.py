"""A package's name -> installed by the system's package manager, or the command to type. Standard library only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.steps import StepFailed, run


@dataclass(frozen=True, slots=True)
class PackageManager:
    """`install` is completed by a package's name; `refresh` brings the list of packages up to date first."""

    program: str
    install: tuple[str, ...]
    refresh: tuple[str, ...] | None = None

    @property
    def may_install(self) -> bool:
        """Homebrew refuses root, the others need it."""
        return (os.geteuid() == 0) != (self.program == "brew")

    def command(self, package: str) -> str:
        """What a person types."""
        sudo = "" if self.program == "brew" else "sudo "
        return f"{sudo}{' '.join(self.install)} {package}"


MANAGERS = (
    PackageManager("apt-get", ("apt-get", "install", "-y", "--no-install-recommends"), ("apt-get", "update")),
    PackageManager("dnf", ("dnf", "install", "-y")),
    PackageManager("microdnf", ("microdnf", "install", "-y")),
    PackageManager("yum", ("yum", "install", "-y")),
    PackageManager("zypper", ("zypper", "--non-interactive", "install")),
    PackageManager("apk", ("apk", "add")),
    PackageManager("pacman", ("pacman", "-Sy", "--noconfirm")),
    PackageManager("brew", ("brew", "install")),
)


def manager(path: str | None = None) -> PackageManager | None:
    """The machine's package manager: the first that is on the path."""
    return next((m for m in MANAGERS if shutil.which(m.program, path=path)), None)


def install(manager: PackageManager, packages: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
    """Install the first of several packages that the distribution has. Raises StepFailed with what each one said."""
    env = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    reasons: list[str] = []
    commands = [[*manager.install, package] for package in packages]
    if manager.refresh is not None:
        commands.insert(0, [*manager.refresh])
    for command in commands:
        try:
            run(command, log.with_stem(f"{log.stem}-{command[-1]}"), env=env)
        except StepFailed as failed:
            reasons.append(str(failed))
            continue
        if command[-1] in packages:
            return
    raise StepFailed("\n".join(reasons))
