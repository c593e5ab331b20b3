"""The wheel in an environment of its own, in an Airflow that has a DAG of somebody else's: no file of the checkout.

`make versions` installs it as a newcomer does, in every supported Airflow.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.checkout import this_checkout
from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import FIRST_ORDERS, open_shop
from tests.airflow.installed_wheels import Installed, new_environment, wheels
from tests.support.airflow_home import REPOSITORY


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    environment = new_environment(folder)
    environment.install(wheels(this_checkout(), folder / "dist"))
    return environment


def test_the_wheel_holds_what_runs_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.installed[0]) as wheel:
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


@pytest.mark.thorough
def test_the_console_script_says_what_is_missing(installed: Installed, tmp_path: Path) -> None:
    file = tmp_path / "stock.yaml"
    file.write_text("source: {connection: stock}\ntables: [public.*]\nlake: /lake\nschedule: null\n")
    command = installed.python.with_name("tidemark")
    environment = {**os.environ, **installed.settings(), "AIRFLOW_HOME": str(tmp_path)}
    process = subprocess.run([command, "preflight", file], env=environment, capture_output=True, text=True)
    assert process.returncode == 1
    assert "AIRFLOW_CONN_STOCK" in process.stderr


def test_another_project_of_the_name_has_the_command_and_nothing_else(installed: Installed, tmp_path: Path) -> None:
    """Its wheel, as the package index has it, brings a program in the command's place, and no folder `tidemark`."""
    other = tmp_path / "tidemark-0.1.4-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as wheel:
        wheel.writestr("tidemark-0.1.4.data/scripts/tidemark", "#!/bin/sh\necho of somebody else\n")
        wheel.writestr("tidemark-0.1.4.dist-info/METADATA", "Metadata-Version: 2.4\nName: tidemark\nVersion: 0.1.4\n")
        wheel.writestr(
            "tidemark-0.1.4.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tidemark-0.1.4.dist-info/RECORD", "")
    environment = new_environment(tmp_path)
    environment.install(installed.installed)
    environment.install([other])

    def said(*command: str | Path) -> str:
        variables = {**os.environ, **environment.settings(), "AIRFLOW_HOME": str(tmp_path)}
        return subprocess.run(command, env=variables, capture_output=True, text=True).stdout

    assert said(environment.python.with_name("tidemark"), "doctor") == "of somebody else\n"
    assert said(environment.python, "-m", "tidemark", "doctor").startswith("Python ")
    assert environment.says("import json, tidemark_airflow\nprint(json.dumps(tidemark_airflow.__name__))")


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
