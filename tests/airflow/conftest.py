"""What parsing dags/ gives, for any set of pipeline files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_home import REPOSITORY

# Airflow reads its home when it is first imported, and some tests here import it into their own process.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tidemark-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(REPOSITORY / "plugins")

SHOP = """\
source: {connection: shop_source}
tables: [shop.*]
lake: lake
"""


@pytest.fixture
def parse(tmp_path: Path) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    """A function from pipeline files (name -> text) to the facts of `parsed_dags`."""

    def run(files: Mapping[str, str]) -> dict[str, Any]:
        pipelines = tmp_path / "pipelines"
        pipelines.mkdir(exist_ok=True)
        for name, text in files.items():
            (pipelines / name).write_text(text)
        return parse_folder(pipelines, tmp_path)

    return run


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The facts of one sound pipeline file, parsed once."""
    home = tmp_path_factory.mktemp("parsed")
    pipelines = home / "pipelines"
    pipelines.mkdir()
    (pipelines / "shop.yaml").write_text(SHOP)
    return parse_folder(pipelines, home)


def parse_folder(pipelines: Path, home: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.airflow.parsed_dags"],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONPATH": str(REPOSITORY / "include"),
            "TIDEMARK_PIPELINES": str(pipelines),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert done.returncode == 0, done.stdout[-4000:]
    assert lines, done.stdout[-4000:]
    return dict(json.loads(lines[-1].removeprefix("FACTS ")))
