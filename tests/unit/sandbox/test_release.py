"""A release has a version in one place, notes from CHANGELOG.md, and the files that registries ask for."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from sandbox.release import distributions
from sandbox.steps import StepFailed
from tests.unit.test_architecture import REPOSITORY

CHANGELOG = "# Changelog\n\nEach …\n\n## 0.2.0, 2026-12-01\n\n- New.\n\n## 0.1.0, 2026-11-30\n\n- First.\n"


def test_the_notes_are_those_of_the_version() -> None:
    assert distributions.release_notes(CHANGELOG, "0.2.0") == "- New.\n"


@pytest.mark.parametrize(
    ("changelog", "version"),
    [
        (CHANGELOG, "0.1.0"),
        (CHANGELOG, "0.3.0"),
        (CHANGELOG.replace("2026-12-01", "not yet released"), "0.2.0"),
        (CHANGELOG, "0.2"),
    ],
)
def test_a_version_without_its_changes_is_not_released(changelog: str, version: str) -> None:
    with pytest.raises(StepFailed, match=r"CHANGELOG\.md begins with"):
        distributions.release_notes(changelog, version)


def test_no_other_place_says_the_version() -> None:
    version = (REPOSITORY / "VERSION").read_text().strip()
    for project in (REPOSITORY, distributions.PROVIDER):
        said = tomllib.loads((project / "pyproject.toml").read_text())
        assert "version" in said["project"]["dynamic"]
        assert said["tool"]["setuptools"]["dynamic"]["version"] == {"file": "VERSION"}
    assert (REPOSITORY / "CHANGELOG.md").read_text().partition("\n## ")[2].startswith(f"{version},")


def test_the_providers_sources_have_examples_and_tested_versions(tmp_path: Path) -> None:
    folder = tmp_path / "provider"
    distributions._copy_provider(REPOSITORY, folder)
    assert {path.name for path in (folder / "example_dags").iterdir()} == {
        path.name for path in (REPOSITORY / "dags").glob("example_*.py")
    }
    assert "{versions}" not in (folder / "README.md").read_text()
    command = [sys.executable, "-c", "import setuptools.build_meta as b; print(b.build_sdist('.'))"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    with tarfile.open(folder / built.stdout.split()[-1]) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert "example_dags/example_quality_check.py" in names
