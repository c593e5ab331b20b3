"""The example DAGs, each run once on the tables of a captured shop; `example_orders_report` is run by test_end_to_end.

delta-rs comes from the package index, into an environment that has all else from the environment of these tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import Shop, open_shop
from tests.airflow.installed_wheels import new_environment

pytestmark = pytest.mark.thorough

TABLES = """
ALTER TABLE shop.orders ADD customer_id bigint, ADD placed_at timestamptz;
CREATE TABLE shop.order_lines (id bigint PRIMARY KEY, order_id uuid);
"""
ORDERS = """
INSERT INTO shop.orders (customer_id, placed_at) SELECT n, timestamptz '2026-01-01 12:00Z' FROM generate_series(1, 7) n;
INSERT INTO shop.order_lines SELECT customer_id, id FROM shop.orders WHERE customer_id <= 5;
INSERT INTO shop.customers (id, email) VALUES (1, 'c1@example.org');
"""
BAD_ORDERS = """
INSERT INTO shop.orders (customer_id, placed_at) VALUES (NULL, now()), (NULL, now()), (8, '2999-01-01Z');
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with Airflow, this library and delta-rs."""
    environment = new_environment(tmp_path_factory.mktemp("examples"))
    pip = [sys.executable, "-m", "pip", "--python", environment.python, "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--quiet", "deltalake==1.6.6"], check=True)
    return environment.python


@pytest.fixture(scope="module")
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sql(TABLES)
        opened.sound()
        opened.sql(ORDERS)
        capture(opened)
        yield opened


def capture(shop: Shop) -> None:
    process = shop.airflow.run("dags", "test", "shop_capture")
    assert process.returncode == 0, process.stdout[-6000:]


def example(shop: Shop, python: Path, name: str, **variables: str) -> tuple[int, str]:
    lake = str(Path(shop.config.lake))
    there = shop.airflow.environment()["PYTHONPATH"]
    program, shop.airflow.program = shop.airflow.program, (str(python), "-m", "airflow")
    try:
        process = shop.airflow.run(
            "dags", "test", f"example_{name}", TIDEMARK_EXAMPLE_LAKE=lake, PYTHONPATH=there, **variables
        )
    finally:
        shop.airflow.program = program
    return process.returncode, process.stdout


def test_the_consistent_report_joins_tables_of_one_position(shop: Shop, python: Path) -> None:
    code, said = example(shop, python, "consistent_report")
    assert code == 0, said[-6000:]
    assert "7 orders, 5 lines, 2 orders without lines" in said


def test_dbt_builds_in_its_project(shop: Shop, python: Path, tmp_path: Path) -> None:
    """dbt is stood in for: it is no part of these tests' environment."""
    project = tmp_path / "project"
    project.mkdir()
    program = tmp_path / "dbt"
    program.write_text('#!/bin/sh\necho "$PWD: $*" > told\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{shop.airflow.environment()['PATH']}"
    code, said = example(shop, python, "dbt_after_tables", DBT_PROJECT=str(project), PATH=path)
    assert code == 0, said[-6000:]
    assert (project / "told").read_text() == f"{project}: build --select source:shop+\n"


def test_the_quality_check_fails_with_the_rules_that_are_broken(shop: Shop, python: Path) -> None:
    code, said = example(shop, python, "quality_check")
    assert code == 0, said[-6000:]
    shop.sql(BAD_ORDERS)
    capture(shop)
    code, said = example(shop, python, "quality_check")
    assert code != 0
    assert "orders without a customer: 2; orders placed in the future: 1" in said
