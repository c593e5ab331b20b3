"""What Airflow's own forms offer: what the file names, and what the last run of the capture knew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Variable

from tests.airflow.conftest import SHOP
from tidemark_airflow import offered_tables
from tidemark_airflow.dag_factory import pipeline_dags


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Airflow's Variables; `asked` are those that were read, `written` those that were written."""
    stored: dict[str, str] = {}

    def get(key: str, default: Any = None) -> Any:
        return stored.get(key, default)

    def put(key: str, value: str, description: str | None = None) -> None:
        assert description
        stored[key] = value

    monkeypatch.setattr(Variable, "get", get)
    monkeypatch.setattr(Variable, "set", put)
    return stored


@pytest.fixture
def dags(tmp_path: Path) -> Callable[[], dict[str, DAG]]:
    (tmp_path / "shop.yaml").write_text(SHOP)
    return lambda: {dag.dag_id: dag for dag in pipeline_dags(tmp_path)}


def examples(dag: DAG) -> list[str]:
    return list(dag.params.get_param("tables").schema["examples"])


FORMS = ("shop_backfill", "shop_verify", "shop_replay")


def test_forms_offer_the_tables_of_the_last_run_behind_what_the_file_names(
    variables: dict[str, str], dags: Callable[[], dict[str, DAG]]
) -> None:
    assert [examples(dags()[form]) for form in FORMS] == [["shop.*"]] * 3
    offered_tables.offer("shop", ["shop.stock", "shop.orders", "shop.a.b"])
    assert [examples(dags()[form]) for form in FORMS] == [["shop.*", "shop.a.b", "shop.orders", "shop.stock"]] * 3
    assert list(variables) == ["tidemark_tables_shop"]
    offered_tables.offer("other", ["other.thing"])
    assert examples(dags()["shop_backfill"])[1:] == ["shop.a.b", "shop.orders", "shop.stock"]


def test_it_is_written_only_when_a_table_came_or_went(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offered_tables.offer("shop", ["shop.b", "shop.a", "shop.a"])
    assert json.loads(variables["tidemark_tables_shop"]) == ["shop.a", "shop.b"]
    with monkeypatch.context() as patched:
        patched.setattr(Variable, "set", lambda *_, **__: pytest.fail("the same tables make no new version of a DAG"))
        offered_tables.offer("shop", ["shop.b", "shop.a"])
    offered_tables.offer("shop", ["shop.b"])
    assert json.loads(variables["tidemark_tables_shop"]) == ["shop.b"]


def test_a_task_that_parses_the_file_asks_nothing(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, dags: Callable[[], dict[str, DAG]]
) -> None:
    offered_tables.offer("shop", ["shop.orders"])
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "shop_capture")
    monkeypatch.setattr(Variable, "get", lambda *_, **__: pytest.fail("a task has no form to show"))
    assert examples(dags()["shop_backfill"]) == ["shop.*"]


@pytest.mark.parametrize("text", ["no JSON", "{}", '"shop.orders"', "[1, 2]", '[""]', "null"])
def test_what_somebody_else_wrote_there_harms_no_dag(
    variables: dict[str, str], dags: Callable[[], dict[str, DAG]], text: str
) -> None:
    variables["tidemark_tables_shop"] = text
    assert len(dags()) == 5
    assert examples(dags()["shop_backfill"]) == ["shop.*"]


def test_an_airflow_that_cannot_be_asked_harms_neither_dag_nor_task(
    monkeypatch: pytest.MonkeyPatch, dags: Callable[[], dict[str, DAG]]
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("no supervisor here")

    monkeypatch.setattr(Variable, "get", refuses)
    assert examples(dags()["shop_backfill"]) == ["shop.*"]
    offered_tables.offer("shop", ["shop.orders"])
    assert examples(dags()["shop_backfill"]) == ["shop.*"]


def test_no_more_are_offered_than_a_list_can_show(
    variables: dict[str, str], dags: Callable[[], dict[str, DAG]]
) -> None:
    offered_tables.offer("shop", [f"shop.t{n:05}" for n in range(3 * offered_tables.MOST)])
    assert len(examples(dags()["shop_backfill"])) == 1 + offered_tables.MOST
