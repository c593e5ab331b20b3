"""The wheel in an environment of its own, in an Airflow that has a DAG of somebody else's: no file of the checkout.

What the wheel needs comes from the environment of these tests by a `.pth` file, so that nothing is downloaded; the
project itself is not installed there. `make versions` installs it as a newcomer does, in every supported Airflow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.checkout import this_checkout
from sandbox.release.distributions import build
from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import FIRST_ORDERS, open_shop
from tests.support.airflow_home import FOREIGN_DAG, REPOSITORY, THREE_LINES


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it, and a folder of DAGs."""

    wheel: Path
    python: Path
    dags: Path

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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel, provider = (file for file in reversed(build(this_checkout(), folder / "dist")) if file.suffix == ".whl")
    uv = Path(sys.executable).with_name("uv")
    run = {"check": True, "capture_output": True, "text": True, "env": {**os.environ, "UV_OFFLINE": "1"}}
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], **run)  # type: ignore[call-overload]
    python = environment / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--no-deps", "--python", python, wheel, provider], **run)  # type: ignore[call-overload]
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "tidemark.py").write_text(THREE_LINES)
    (dags / "foreign.py").write_text(FOREIGN_DAG)
    (folder / "no-plugins").mkdir()
    return Installed(wheel, python, dags)


def test_the_wheel_holds_what_runs_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"tidemark", "tidemark_airflow"}
    for place, package in (("include/tidemark", "tidemark"), ("plugins/tidemark_airflow", "tidemark_airflow")):
        whole = REPOSITORY / place
        files = [path for path in whole.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        missing = {f"{package}/{path.relative_to(whole).as_posix()}" for path in files} - set(names)
        assert missing == set()
    whole = REPOSITORY / "spark_apps"
    applications = {
        path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.suffix in (".py", ".properties", ".jar")
    }
    assert {f"tidemark/spark_apps/{name}" for name in applications} <= set(names)


def test_airflow_finds_the_plugin_the_dags_and_the_applications_beside_a_foreign_dag(
    installed: Installed, tmp_path: Path
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "stock.yaml").write_text(
        "source: {connection: stock}\ntables: [public.*]\nlake: /lake\nschedule: null\n"
    )
    facts = installed.says(
        f"""
import os, json
os.environ |= {{"AIRFLOW_HOME": {str(tmp_path)!r}, "TIDEMARK_PIPELINES": {str(pipelines)!r},
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}}
import tidemark, tidemark_airflow
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
from tidemark.spark_submit import spark_jars
bag = DagBag({str(installed.dags)!r}, bundle_path={str(installed.dags)!r}, bundle_name="test")
application = spark_jars.application("merge_batch", os.environ)
provider = ProvidersManager().providers["airflow-provider-tidemark"]
print(json.dumps([sorted(bag.dags), bag.import_errors, [p.name for p in plugins_manager._get_plugins()[0]],
    tidemark.__file__, application, os.path.isfile(application), provider.version, provider.data["name"],
    ProvidersManager().hooks["tidemark"].hook_name]))
"""
    )
    assert isinstance(facts, list)
    dags, broken, plugins, library, application, there, *provider = facts
    assert broken == {}
    assert {"foreign", "stock_capture", "stock_backfill"} <= set(dags)
    assert "tidemark" in plugins
    environment = str(installed.python.parents[1])
    assert library.startswith(environment)
    assert application.startswith(environment)
    assert there
    assert provider == [(REPOSITORY / "VERSION").read_text().strip(), "Tidemark", "Tidemark source (PostgreSQL)"]


def test_the_console_script_says_what_is_missing(installed: Installed, tmp_path: Path) -> None:
    file = tmp_path / "stock.yaml"
    file.write_text("source: {connection: stock}\ntables: [public.*]\nlake: /lake\nschedule: null\n")
    command = installed.python.with_name("tidemark")
    environment = {**os.environ, **installed.settings(), "AIRFLOW_HOME": str(tmp_path)}
    process = subprocess.run([command, "preflight", file], env=environment, capture_output=True, text=True)
    assert process.returncode == 1
    assert "AIRFLOW_CONN_STOCK" in process.stderr


@pytest.mark.thorough
def test_a_capture_by_the_wheel_alone_ends_equal(
    installed: Installed,
    postgres: PostgresServer,
    new_metadata: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with open_shop(postgres, new_metadata, tmp_path_factory) as shop:
        shop.airflow.program = (str(installed.python), "-m", "airflow")
        shop.airflow.settings = installed.settings()
        shop.sound()
        shop.sql(FIRST_ORDERS)
        process = shop.airflow.run("dags", "test", "shop_capture")
        assert process.returncode == 0, process.stdout[process.stdout.find("Task failed") :][:6000]
        assert str(REPOSITORY / "include") not in process.stdout
        assert shop.differences() == {}
