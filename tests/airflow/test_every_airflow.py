"""What every supported Airflow does: capture, backfill, verify and the page, by `airflow dags test` and its scheduler.

`make versions` plays it with the wheel in an environment of each version (TIDEMARK_INSTALLED); elsewhere it is the
Airflow of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, SLOW_S, TABLES, Shop, open_shop
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.reading import proofs

pytestmark = pytest.mark.thorough
READING = ("plan", "read_chunks", "drain", "merge", "confirm", "report")


@pytest.fixture(scope="module")
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sql(FIRST_ORDERS)
        yield opened


def test_dags_test_fills_the_tables_keeps_them_equal_and_proves_it(shop: Shop) -> None:
    shop.configure(health="warn")  # the first capture finds rows that it does not have
    shop.dags_test("shop_capture")
    shop.dags_test("shop_backfill", readers=2, chunk_rows=200)
    assert shop.differences() == {}
    shop.sql(MORE_ORDERS)
    shop.dags_test("shop_capture")
    assert shop.differences() == {}
    shop.dags_test("shop_verify", share="1")
    assert shop.airflow.task_states("shop_verify") == [dict.fromkeys(READING, "success")]
    with open_ledger(shop.ledger, "shop") as book:
        proven = proofs.verified(book)
    assert {"shop.customers", "shop.orders"} <= set(proven)
    assert [one for one in proven.values() if one.through_lsn is None or one.differing] == []


def test_a_scheduler_runs_all_of_it_and_the_page_shows_it(shop: Shop) -> None:
    airflow = shop.airflow
    before = {dag: len(airflow.task_states(f"shop_{dag}")) for dag in ("capture", "backfill", "verify")}
    shop.configure(schedule='"* * * * *"', wait_s=20, health="warn")
    shop.sql(FIRST_ORDERS.replace("generate_series(1,", "generate_series(20001, 20000 +"))

    def newest(dag: str) -> dict[str, str]:
        return next(iter(airflow.task_states(f"shop_{dag}")[before[dag] :]), {})

    def is_over(dag: str, *tasks: str) -> bool:
        states = newest(dag)
        assert not {"failed", "upstream_failed"} & set(states.values()), states
        return all(states.get(task) == "success" for task in tasks)

    def has_succeeded(dag: str, run: str) -> bool:
        """Of this run: the DAG of verifies starts one by itself when it is no longer paused."""
        state = airflow.get(f"/api/v2/dags/shop_{dag}/dagRuns/{run}")["state"]
        assert state != "failed"
        return bool(state == "success")

    with airflow.services("api-server", "scheduler", "dag-processor", "triggerer"):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        for dag in before:
            wait_for(f"shop_{dag} is known", lambda dag=dag: airflow.unpause(f"shop_{dag}"), SLOW_S)  # type: ignore[misc]
        wait_for("a scheduled capture is over", lambda: is_over("capture", "merge", "confirm"), SLOW_S)
        for dag, conf in {"backfill": {"tables": ["shop.orders"]}, "verify": {"share": "1"}}.items():
            body = {"logical_date": None, "conf": conf}
            run = airflow.send("POST", f"/api/v2/dags/shop_{dag}/dagRuns", body)["dag_run_id"]
            wait_for(f"the {dag} is over", lambda dag=dag, run=run: has_succeeded(dag, run), SLOW_S)  # type: ignore[misc]
        shown = airflow.get("/tidemark/api/pipelines/shop")
        assert {table["table"] for table in shown["tables"]} == set(TABLES)
        assert set(shown["may"].values()) == {True}
        links = airflow.get(f"/api/v2/dags/shop_verify/dagRuns/{run}/taskInstances/report/links")
        assert links["extra_links"]["Tidemark"].endswith("/tidemark/?dag_id=shop_verify")
    assert shop.differences() == {}


def test_an_error_that_no_retry_mends_ends_the_task_at_its_first_try_under_its_own_name(shop: Shop) -> None:
    shop.configure(health="warn")
    process = shop.airflow.run("dags", "test", "shop_capture", AIRFLOW_CONN_SPARK_DEFAULT="spark://local[2]")
    assert process.returncode != 0
    assert re.search(r"PreflightFailed\b", process.stdout), process.stdout[-6000:]
    with psycopg.connect(shop.airflow.metadata) as connection:
        tries = connection.execute(
            "SELECT t.state, t.try_number, t.max_tries FROM task_instance t JOIN dag_run r USING (dag_id, run_id) "
            "WHERE t.dag_id = 'shop_capture' AND t.task_id = 'preflight' ORDER BY r.id DESC LIMIT 1"
        ).fetchone()
    assert tries is not None
    state, try_number, retries = tries
    assert (state, try_number) == ("failed", 1)
    assert retries > 0
