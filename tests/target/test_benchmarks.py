"""Every benchmark runs, at a size that says nothing of time. What needs a registry or an Airflow is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.registry import MODULES, benchmarks_of, curves_of
from tests.unit.test_architecture import REPOSITORY

HERE = [module for module in MODULES if module != "peers"]
NAMES = [(module, each.name) for module in HERE for each in benchmarks_of(module)]
NAMES += [(module, each.name) for module in HERE for each in curves_of(module)]


@pytest.mark.thorough
@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_benchmark_runs(module: str, name: str, tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"benchmarks.{module}", name, "--scale", "tiny", "--rounds", "1"]
    process = subprocess.run(
        [*command, "--json", str(written), "--folder", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]
    figures = json.loads(written.read_text())
    assert [entry["name"] for entry in (*figures["lines"], *figures["curves"])] == [name]
