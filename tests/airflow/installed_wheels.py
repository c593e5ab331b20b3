"""Installs built wheels into a virtual environment of its own, with DAG files of a user.

What the wheels need comes from the environment of these tests by a `.pth` file, so that nothing is downloaded; the
project itself is not installed there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandbox.checkout import Checkout
from sandbox.release.distributions import build
from tests.support.airflow_home import FOREIGN_DAG, THREE_LINES


@dataclass
class Installed:
    """A virtual environment, and a folder of DAGs. `installed` are the wheels that it has, the library's first."""

    python: Path
    dags: Path
    installed: list[Path] = field(default_factory=list)

    def install(self, wheels: list[Path]) -> None:
        """In place of those of another version."""
        uv = Path(sys.executable).with_name("uv")
        command = [uv, "pip", "install", "--no-deps", "--reinstall", "--python", self.python, *wheels]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "UV_OFFLINE": "1"})
        self.installed = wheels

    def settings(self) -> dict[str, str]:
        """What an Airflow with this environment is told, beside what every test's Airflow is."""
        nothing = self.dags.parent / "no-plugins"
        return {
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(nothing),
            "PYTHONPATH": "",
            # As pyspark comes from the environment of these tests, so does its spark-submit.
            "PATH": os.pathsep.join([str(self.python.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def says(self, program: str) -> object:
        """What a program of this environment prints as its last line, in JSON."""
        process = subprocess.run(
            [self.python, "-c", program], env={**os.environ, **self.settings()}, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr[-4000:]
        return json.loads(process.stdout.splitlines()[-1])


def new_environment(folder: Path) -> Installed:
    """Without any wheel yet."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, capture_output=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "tidemark.py").write_text(THREE_LINES)
    (dags / "foreign.py").write_text(FOREIGN_DAG)
    (folder / "no-plugins").mkdir()
    return Installed(environment / "bin" / "python", dags)


def wheels(checkout: Checkout, into: Path) -> list[Path]:
    """The library's, then the provider's."""
    return [file for file in reversed(build(checkout, into)) if file.suffix == ".whl"]
