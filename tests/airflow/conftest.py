"""What parsing dags/ gives, for any set of pipeline files; databases for an Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import Shop, open_shop
from tests.conftest import create_database, drop_database
from tests.support.airflow_home import REPOSITORY, AirflowHome

# Airflow reads its home when it is first imported, and some tests here import it into their own process.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tidemark-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["TIDEMARK_JVM_ARCHIVES"] = ""
os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(REPOSITORY / "plugins")

SHOP = """\
source: {connection: shop_source}
tables: [shop.*]
lake: lake
"""
SPREAD = SHOP + "merge: {every: 10m, rows: 20000, applications: 3}\n"
FOLLOWING = SHOP + 'schedule: "*/15 * * * *"\nfollow: {every: 2s}\n'
# Pipeline files of which a process parses all: name -> text.
FOLDERS = {
    "sound": {"shop.yaml": SHOP},
    "spread": {"shop.yaml": SPREAD},
    "following": {"shop.yaml": FOLLOWING},
    "following continuously": {"shop.yaml": FOLLOWING.replace("*/15 * * * *", "@continuous")},
    "broken": {
        "shop.yaml": SHOP,
        "stock.yaml": SHOP.replace("tables", "tabels") + "schedul: null\n",
        "notes.yaml": "tables: [\n",
    },
    "refused schedule": {
        "shop.yaml": SHOP,
        "stock.yaml": 'schedule: "61 * * * *"\n' + SHOP.replace("shop_source", "stock_source"),
    },
    "one name twice": {"shop.yaml": SHOP, "zzz.yaml": "pipeline: shop\n" + SHOP},
    "broken with the name of a sound one": {"a.yaml": "pipeline: shop\n" + SHOP, "shop.yaml": "tables: 3\n"},
}


@pytest.fixture(scope="session")
def new_metadata(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A function to the connection string of a database of Airflow's, migrated; its tables are made once."""
    migrated: list[str] = []

    def make() -> str:
        if not migrated:
            migrated.append(create_database(postgres, "migrated"))
            AirflowHome(tmp_path_factory.mktemp("migrating"), migrated[0], Path("none"), {}).migrate()
        return create_database(postgres, "airflow", like=migrated[0])

    yield make
    for database in migrated:
        drop_database(postgres, database)


@pytest.fixture
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """A shop of the test's own, with a sound pipeline file. Modules that share one have a fixture of this name."""
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sound()
        yield opened


@pytest.fixture(scope="session")
def parsed_below(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@pytest.fixture(scope="session")
def parsed(parsed_below: Path) -> dict[str, dict[str, Any]]:
    """The facts of each of the folders."""
    return dict(zip(FOLDERS, parse_folders(*FOLDERS.values(), below=parsed_below), strict=True))


@pytest.fixture(scope="session")
def sound(parsed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return parsed["sound"]


def parse_folders(*folders: Mapping[str, str], below: Path) -> list[dict[str, Any]]:
    """The facts of `parsed_dags` for each of these folders of pipeline files (name -> text), all of one process."""
    written = []
    for number, files in enumerate(folders):
        pipelines = below / str(number)
        pipelines.mkdir(exist_ok=True)
        for name, text in files.items():
            (pipelines / name).write_text(text)
        written.append(str(pipelines))
    process = subprocess.run(
        [sys.executable, "-m", "tests.airflow.parsed_dags", *written],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "AIRFLOW_HOME": str(below / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONPATH": str(REPOSITORY / "include"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("FACTS ")]
    assert process.returncode == 0, process.stdout[-4000:]
    assert len(lines) == len(folders), process.stdout[-4000:]
    return [dict(json.loads(line.removeprefix("FACTS "))) for line in lines]
