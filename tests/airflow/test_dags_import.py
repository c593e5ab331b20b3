"""Every DAG imports without the network, fast, and one broken file harms no other pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.airflow.conftest import SHOP

HEAVY = {"pyspark", "psycopg", "psycopg2", "pyarrow", "pandas", "numpy", "delta", "fsspec"}

Parse = Callable[[Mapping[str, str]], dict[str, Any]]


def test_every_dag_imports_and_serializes_with_the_network_blocked(shop: dict[str, Any]) -> None:
    assert shop["import_errors"] == {}
    assert {"shop_capture", "shop_backfill", "example_orders_report"} <= set(shop["dags"])
    assert all(shop["serialized"].values())


def test_parsing_imports_nothing_heavy(shop: dict[str, Any]) -> None:
    assert not HEAVY & {module.partition(".")[0] for module in shop["imported_by_dags"]}
    assert "tidemark.config_file" in shop["imported_by_dags"], "the list of modules says nothing"


def test_parsing_twice_gives_the_same_dags(parse: Parse) -> None:
    assert parse({"shop.yaml": SHOP})["dags"] == parse({})["dags"]


def test_a_broken_file_fails_alone_and_shows_every_problem(parse: Parse) -> None:
    broken = SHOP.replace("tables", "tabels") + "schedul: null\n"
    facts = parse({"shop.yaml": SHOP, "stock.yaml": broken, "notes.yaml": "tables: [\n"})
    assert facts["import_errors"] == {}
    assert set(facts["dags"]["shop_capture"]["tasks"]) == {"preflight", "changes_waiting", "drain", "merge", "confirm"}
    stock = facts["dags"]["stock_capture"]
    assert list(stock["tasks"]) == ["pipeline_file"]
    assert "did you mean 'tables'?" in stock["doc_md"]
    assert "did you mean 'schedule'?" in stock["doc_md"]
    assert stock["is_paused_upon_creation"] is False
    assert stock["schedule"] is not None
    assert "notes.yaml" in facts["dags"]["notes_capture"]["doc_md"]


def test_a_schedule_that_airflow_refuses_fails_alone(parse: Parse) -> None:
    refused = 'schedule: "61 * * * *"\n' + SHOP.replace("shop_source", "stock_source")
    facts = parse({"shop.yaml": SHOP, "stock.yaml": refused})
    assert facts["import_errors"] == {}
    assert len(facts["dags"]["shop_capture"]["tasks"]) == 5
    assert list(facts["dags"]["stock_capture"]["tasks"]) == ["pipeline_file"]


def test_two_files_of_one_name_keep_the_first(parse: Parse) -> None:
    facts = parse({"shop.yaml": SHOP, "zzz.yaml": "pipeline: shop\n" + SHOP})
    assert facts["import_errors"] == {}
    assert len(facts["dags"]["shop_capture"]["tasks"]) == 5
    assert "is also named 'shop'" in facts["dags"]["zzz_capture"]["doc_md"]


def test_a_broken_file_does_not_take_the_name_of_a_sound_pipeline(parse: Parse) -> None:
    facts = parse({"a.yaml": "pipeline: shop\n" + SHOP, "shop.yaml": "tables: 3\n"})
    assert len(facts["dags"]["shop_capture"]["tasks"]) == 5
    assert list(facts["dags"]["shop.yaml_broken"]["tasks"]) == ["pipeline_file"]
