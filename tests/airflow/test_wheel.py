"""The wheel in an environment of its own, in an Airflow that has a DAG of somebody else's: no file of the checkout.

What the wheel needs comes from the environment of these tests by a `.pth` file, so that nothing is downloaded; the
project itself is not installed there. One environment is made as a newcomer makes it, from an index, with the oldest
Airflow that the wheel takes and that one's constraints.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import FIRST_ORDERS, open_shop
from tests.conftest import create_database
from tests.support.airflow_home import FOREIGN_DAG, REPOSITORY

PARTS = ("include/tidemark", "plugins/tidemark_airflow", "spark_apps", "pyproject.toml", "setup.py", "README.md")
THREE_LINES = """\
from tidemark_airflow.dag_factory import pipeline_dags

globals().update({dag.dag_id: dag for dag in pipeline_dags()})
"""


# The oldest release that the wheel takes, and the day of it: Airflow makes a release's constraints file of the newest
# of everything that an index has then.
FIRST_AIRFLOW = "3.3.0"
RELEASED = "2026-07-07"
CONSTRAINTS = "TIDEMARK_AIRFLOW_CONSTRAINTS"  # the path of such a file, where somebody has it
PROVIDERS = ("apache-spark", "postgres", "standard")


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
    source = folder / "source"
    for path in PARTS:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        whole = REPOSITORY / path
        if whole.is_dir():
            shutil.copytree(whole, source / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(whole, source / path)
    uv = Path(sys.executable).with_name("uv")
    run = {"check": True, "capture_output": True, "text": True, "env": {**os.environ, "UV_OFFLINE": "1"}}
    build = [uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", folder, source]
    subprocess.run(build, **run)  # type: ignore[call-overload]
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], **run)  # type: ignore[call-overload]
    python = environment / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--no-deps", "--python", python, wheel], **run)  # type: ignore[call-overload]
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "tidemark.py").write_text(THREE_LINES)
    (dags / "foreign.py").write_text(FOREIGN_DAG)
    (folder / "no-plugins").mkdir()
    return Installed(wheel, python, dags)


@pytest.fixture(scope="module")
def beside_the_first(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel as it gets into an Airflow by the two steps of Airflow's documentation: what belongs to Airflow with
    the constraints, then Spark without."""
    folder = tmp_path_factory.mktemp("first")
    uv = str(Path(sys.executable).with_name("uv"))
    environment = folder / "environment"
    python = environment / "bin" / "python"

    def run(*command: str | Path) -> None:
        process = subprocess.run([uv, *map(str, command)], capture_output=True, text=True)
        assert process.returncode == 0, process.stderr[-4000:]

    constraints = Path(os.environ.get(CONSTRAINTS) or folder / "constraints.txt")
    if CONSTRAINTS not in os.environ:
        wanted = folder / "wanted.txt"
        names = [f"apache-airflow=={FIRST_AIRFLOW}", *(f"apache-airflow-providers-{name}" for name in PROVIDERS)]
        wanted.write_text("\n".join(names))
        run("pip", "compile", "--python", sys.executable, "--exclude-newer", RELEASED, wanted, "-o", constraints)
    run("venv", "--python", sys.executable, environment)
    airflow = f"apache-airflow=={FIRST_AIRFLOW}"
    run("pip", "install", "--python", python, "-c", constraints, airflow, f"{installed.wheel}[airflow]")
    run("pip", "install", "--python", python, airflow, f"{installed.wheel}[airflow,spark]")
    return Installed(installed.wheel, python, installed.dags)


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
from tidemark.spark_submit import spark_jars
bag = DagBag({str(installed.dags)!r}, bundle_path={str(installed.dags)!r}, bundle_name="test")
application = spark_jars.application("merge_batch", os.environ)
print(json.dumps([sorted(bag.dags), bag.import_errors, [p.name for p in plugins_manager._get_plugins()[0]],
    tidemark.__file__, application, os.path.isfile(application)]))
"""
    )
    assert isinstance(facts, list)
    dags, broken, plugins, library, application, there = facts
    assert broken == {}
    assert {"foreign", "stock_capture", "stock_backfill"} <= set(dags)
    assert "tidemark" in plugins
    environment = str(installed.python.parents[1])
    assert library.startswith(environment)
    assert application.startswith(environment)
    assert there


def test_the_console_script_says_what_is_missing(installed: Installed, tmp_path: Path) -> None:
    file = tmp_path / "stock.yaml"
    file.write_text("source: {connection: stock}\ntables: [public.*]\nlake: /lake\nschedule: null\n")
    command = installed.python.with_name("tidemark")
    environment = {**os.environ, **installed.settings(), "AIRFLOW_HOME": str(tmp_path)}
    process = subprocess.run([command, "preflight", file], env=environment, capture_output=True, text=True)
    assert process.returncode == 1
    assert "AIRFLOW_CONN_STOCK" in process.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("environment", ["installed", "beside_the_first"])
def test_a_capture_by_the_wheel_alone_ends_equal(
    environment: str,
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    new_metadata: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    installed: Installed = request.getfixturevalue(environment)
    is_other = environment == "beside_the_first"
    if is_other:
        assert installed.says("import json, airflow; print(json.dumps(airflow.__version__))") == FIRST_AIRFLOW
        new_metadata = partial(create_database, postgres, "first")
    with open_shop(postgres, new_metadata, tmp_path_factory) as shop:
        shop.airflow.program = (str(installed.python), "-m", "airflow")
        shop.airflow.settings = installed.settings()
        if is_other:
            shop.airflow.migrate()
        shop.sound()
        shop.sql(FIRST_ORDERS)
        process = shop.airflow.run("dags", "test", "shop_capture")
        assert process.returncode == 0, process.stdout[process.stdout.find("Task failed") :][:6000]
        assert str(REPOSITORY / "include") not in process.stdout
        assert shop.differences() == {}
