"""The backfill DAG as Airflow runs it: `airflow dags test`, and started by the capture under a real scheduler.

The shop has rows before the pipeline's slot exists. The judge is the demo's: every row of `current` is compared with
the source's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, SLOW_S, TABLES, Shop, open_shop

CAPTURE_TASKS = ("preflight", "changes_waiting", "drain", "merge", "confirm")
BACKFILL_TASKS = ("plan", "read_chunks", "drain", "merge", "confirm", "report")
STOCK = """
CREATE TABLE shop.stock (sku text, place integer, pieces integer, PRIMARY KEY (sku, place));
INSERT INTO shop.stock SELECT 'P-' || n, n % 7, n FROM generate_series(1, 1000) n;
"""


@pytest.fixture(scope="module")
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sql(FIRST_ORDERS)
        yield opened


@dataclass(frozen=True, slots=True)
class Filled:
    """The logs of the first runs of both DAGs; the backfills that capture had started; the states of the readers."""

    captured: str
    started: list[dict[str, str]]
    backfilled: str
    readers: list[str]


@pytest.fixture(scope="module", autouse=True)
def filled(shop: Shop) -> Filled:
    """A first capture that finds rows older than its slot, and a backfill of them."""
    shop.configure(auto_backfill=True)
    captured = shop.airflow.run("dags", "test", "shop_capture")
    assert captured.returncode == 0, captured.stdout[-6000:]
    started = shop.airflow.task_states("shop_backfill")
    shop.sql(MORE_ORDERS)
    process = shop.airflow.run("dags", "test", "shop_backfill", "--conf", '{"readers": 3, "chunk_rows": 100}')
    assert process.returncode == 0, process.stdout[-6000:]
    return Filled(captured.stdout, started, process.stdout, readers(shop))


def readers(shop: Shop) -> list[str]:
    """The states of the mapped readers of the newest run of the backfill DAG."""
    with psycopg.connect(shop.airflow.metadata) as connection:
        return [
            state
            for (state,) in connection.execute(
                "SELECT t.state FROM task_instance t JOIN dag_run r USING (dag_id, run_id) WHERE dag_id = "
                "'shop_backfill' AND task_id = 'read_chunks' "
                "AND r.id = (SELECT max(id) FROM dag_run WHERE dag_id = 'shop_backfill') ORDER BY map_index"
            )
        ]


def chunks(shop: Shop, run: str) -> list[int]:
    """The rows of the chunks that a run read, oldest first."""
    with psycopg.connect(shop.ledger) as connection:
        counts = connection.execute(
            "SELECT rows FROM tidemark.chunks JOIN tidemark.backfills USING (pipeline, backfill) WHERE run_id = %s "
            "ORDER BY read_at",
            (f"shop_backfill/{run}",),
        )
        return [rows for (rows,) in counts]


def test_dags_test_runs_a_whole_backfill_without_a_scheduler(shop: Shop, filled: Filled) -> None:
    assert "Run `airflow dags test shop_backfill` next: shop.audit (" in filled.captured
    assert filled.started == [], "a run that nothing would ever start"
    assert shop.differences() == {}
    assert shop.airflow.task_states("shop_backfill")[0] == dict.fromkeys(BACKFILL_TASKS, "success")
    assert filled.readers == ["success"] * 3
    for table in TABLES:
        assert f"{table}: complete as of " in filled.backfilled, "the report"


@pytest.mark.thorough
def test_a_backfill_of_nothing_reads_nothing_and_starts_no_spark(shop: Shop) -> None:
    process = shop.airflow.run("dags", "test", "shop_backfill")
    assert process.returncode == 0, process.stdout[-6000:]
    assert "Spark-Submit cmd" not in process.stdout
    assert shop.airflow.task_states("shop_backfill")[-1] == {
        **dict.fromkeys(BACKFILL_TASKS, "success"),
        **dict.fromkeys(("read_chunks", "drain", "merge"), "skipped"),
    }


@pytest.mark.thorough
def test_a_wrong_form_is_refused_with_a_sentence(shop: Shop) -> None:
    conf = '{"tables": ["shop.orders"], "row_filter": "totl > 5"}'
    process = shop.airflow.run("dags", "test", "shop_backfill", "--conf", conf)
    assert process.returncode != 0
    assert "The row filter cannot be used on table shop.orders" in process.stdout, process.stdout[-3000:]


@pytest.mark.thorough
def test_a_run_that_is_marked_failed_and_cleared_goes_on_at_its_cursor(shop: Shop) -> None:
    airflow = shop.airflow
    shop.configure()
    services = ("api-server", "scheduler", "dag-processor")
    with replace(airflow, settings={"TIDEMARK_FAILPOINT": "read.after_high:stop"}).services(*services):
        airflow.wait_until_healthy("scheduler", "dag_processor", seconds=SLOW_S)
        wait_for("shop_backfill is known", lambda: airflow.unpause("shop_backfill"), SLOW_S)
        conf = {"tables": ["shop.customers"], "chunk_rows": 200, "readers": 1}
        path = "/api/v2/dags/shop_backfill/dagRuns"
        run = airflow.send("POST", path, {"logical_date": None, "conf": conf})["dag_run_id"]
        before = wait_for("a chunk is read", lambda: chunks(shop, run), SLOW_S)
        assert airflow.send("PATCH", f"{path}/{run}", {"state": "failed"})["state"] == "failed"
        wait_for("its reader is gone", lambda: readers(shop) == ["failed"], SLOW_S)
    assert chunks(shop, run) == before
    assert 0 < sum(before) < 500, "it was stopped in the middle"
    assert shop.differences() == {}, "what was read and not claimed changes nothing"

    with airflow.services(*services):
        airflow.wait_until_healthy("scheduler", "dag_processor", seconds=SLOW_S)
        airflow.send("POST", f"{path}/{run}/clear", {"dry_run": False})
        wait_for("the run is over", lambda: airflow.task_states("shop_backfill")[-1].get("report") == "success", SLOW_S)
    assert chunks(shop, run)[:1] == before
    assert sum(chunks(shop, run)) == 500, "no row was read twice"
    assert shop.differences() == {}


@pytest.mark.thorough
def test_capture_starts_the_backfill_of_a_table_that_joins_beside_its_own_runs(shop: Shop) -> None:
    airflow = shop.airflow
    captures, backfills = len(airflow.task_states("shop_capture")), len(airflow.task_states("shop_backfill"))
    shop.configure(schedule='"* * * * *"', auto_backfill=True)
    shop.sql(STOCK)

    def runs(dag_id: str, earlier: int) -> list[dict[str, str]]:
        states = airflow.task_states(dag_id)[earlier:]
        assert not [run for run in states if {"failed", "upstream_failed"} & set(run.values())], states
        return states

    with airflow.services("api-server", "scheduler", "dag-processor"):
        airflow.wait_until_healthy("scheduler", "dag_processor", seconds=SLOW_S)
        wait_for("shop_capture is known", lambda: airflow.unpause("shop_capture"), SLOW_S)
        wait_for(
            "a backfill was started and is over",
            lambda: [run.get("report") for run in runs("shop_backfill", backfills)][:1] == ["success"],
            SLOW_S,
        )
        assert shop.differences("shop.stock") == {}
        shop.sql("UPDATE shop.stock SET pieces = pieces + 1 WHERE place = 3")
        seen = len(runs("shop_capture", captures))
        wait_for(
            "a capture run that began later is over",
            lambda: [run["confirm"] for run in runs("shop_capture", captures)[seen : seen + 1]] == ["success"],
            SLOW_S,
        )
        assert shop.differences("shop.stock") == {}
        assert len(runs("shop_backfill", backfills)) == 1
    assert readers(shop) == ["success"] * 2
