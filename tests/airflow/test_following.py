"""A capture that follows its source, as Airflow runs it: drain and merge beside each other, run after run."""

from __future__ import annotations

import psutil
import pytest

from sandbox.services.postgres import wait_for
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, SLOW_S, Shop

TASKS = ("preflight", "drain", "merge", "confirm", "health")
# Of a backfill, what the run that follows does instead.
BY_FOLLOWER = ("drain", "merge", "confirm")


def drivers(shop: Shop) -> list[psutil.Process]:
    """The JVMs that merge what a run of this shop follows."""
    return [
        process
        for process in psutil.process_iter()
        if is_driver(process) and str(shop.file.parent.parent) in " ".join(process.cmdline())
    ]


def is_driver(process: psutil.Process) -> bool:
    try:
        return process.name() == "java" and any("follow_plans" in word for word in process.cmdline())
    except psutil.Error:
        return False


def states(shop: Shop) -> list[dict[str, str]]:
    """Of each run of the capture, the states of its tasks."""
    return shop.airflow.task_states("shop_capture")


def is_equal(shop: Shop) -> bool:
    """Whether the tables equal the source by now; a table may not be there yet."""
    try:
        return shop.differences() == {}
    except AssertionError:
        return False


@pytest.mark.thorough
def test_runs_follow_the_source_one_after_the_other_and_a_killed_driver_is_replaced(shop: Shop) -> None:
    airflow = shop.airflow
    shop.configure(schedule='"*/2 * * * *"', follow="{every: 1s}")
    shop.sql(FIRST_ORDERS, MORE_ORDERS)

    with airflow.services("api-server", "scheduler", "dag-processor", "triggerer"):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        wait_for("the capture is known", lambda: airflow.unpause("shop_capture"), SLOW_S)
        wait_for("a run follows", lambda: [s for s in states(shop) if s["drain"] == s["merge"] == "running"], SLOW_S)
        wait_for("the tables equal the source", lambda: is_equal(shop), SLOW_S)
        assert states(shop)[-1]["drain"] == "running", states(shop)
        shop.sql("UPDATE shop.orders SET total = total + 1 WHERE customer <= 50")
        wait_for("they do again, in the middle of the run", lambda: is_equal(shop), SLOW_S)
        (driver,) = drivers(shop)
        driver.kill()
        shop.sql("UPDATE shop.orders SET total = total + 1 WHERE customer <= 50")
        wait_for("they do again, by another driver", lambda: is_equal(shop), SLOW_S)
        ended = dict.fromkeys(TASKS, "success")
        wait_for("the first run is over", lambda: states(shop)[0] == ended, SLOW_S)
        assert states(shop)[1]["drain"] == states(shop)[1]["merge"] == "running", "the next one was ready before"
        shop.sql("DELETE FROM shop.orders WHERE customer <= 20")
        wait_for("the tables equal the source", lambda: is_equal(shop), SLOW_S)
        assert not [run for run in states(shop) if {"failed", "upstream_failed"} & set(run.values())], states(shop)
    assert {uri for uri, _ in airflow.asset_events()} >= {"tidemark://shop/shop/orders"}


@pytest.mark.thorough
def test_a_run_outlasts_a_pause_gives_way_to_another_and_ends_with_its_merge(shop: Shop) -> None:
    """The next run of the schedule is days away."""
    airflow = shop.airflow
    shop.configure(schedule='"0 0 * * 0"', follow="{every: 1s}")
    shop.sql(FIRST_ORDERS)
    path = "/api/v2/dags/shop_capture"

    def triggered() -> str:
        return str(airflow.send("POST", f"{path}/dagRuns", {"logical_date": None})["dag_run_id"])

    with airflow.services("api-server", "scheduler", "dag-processor", "triggerer"):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        wait_for("the capture is known", lambda: airflow.unpause("shop_capture"), SLOW_S)
        wait_for("the tables equal the source, by the run of last Sunday", lambda: is_equal(shop), SLOW_S)
        airflow.send("PATCH", path, {"is_paused": True})
        shop.sql("UPDATE shop.orders SET total = total + 1 WHERE customer <= 50")
        wait_for("they do again, although the DAG is paused", lambda: is_equal(shop), SLOW_S)
        airflow.send("PATCH", path, {"is_paused": False})
        other = triggered()
        wait_for("the first run is over", lambda: states(shop)[0] == dict.fromkeys(TASKS, "success"), SLOW_S)
        wait_for("the other one follows", lambda: states(shop)[-1]["merge"] == "running", SLOW_S)
        shop.sql("DELETE FROM shop.orders WHERE customer <= 20")
        wait_for("the tables equal the source", lambda: is_equal(shop), SLOW_S)
        shop.sql(
            "ALTER TABLE shop.orders ALTER note TYPE bytea USING note::bytea",
            "DELETE FROM shop.orders WHERE customer = 21",
        )
        wait_for("its backfill begins meanwhile", lambda: airflow.task_states("shop_backfill"), SLOW_S)
        assert (states(shop)[-1]["drain"], states(shop)[-1]["merge"]) == ("running", "running")
        beside = {
            **dict.fromkeys(("plan", "read_chunks", "report"), "success"),
            **dict.fromkeys(BY_FOLLOWER, "skipped"),
        }
        wait_for("this run merges it", lambda: beside in airflow.task_states("shop_backfill"), SLOW_S)
        put_aside = "SELECT name FROM tidemark.put_aside"
        wait_for("its next plan replaces the table", lambda: shop.ledger_query(put_aside), SLOW_S)
        airflow.send("PATCH", f"{path}/dagRuns/{other}/taskInstances/merge", {"new_state": "failed"})
        ended = {**dict.fromkeys(TASKS, "success"), "merge": "failed", "confirm": "upstream_failed", "health": "failed"}
        wait_for("the run ends with its merge", lambda: states(shop)[-1] == ended, SLOW_S)


@pytest.mark.thorough
def test_tables_follow_while_the_scheduler_is_gone_and_after_it_is_back(shop: Shop) -> None:
    """A new scheduler ends the tasks of the killed one and begins other tries; the next run is days away."""
    airflow = shop.airflow
    shop.configure(schedule='"0 0 * * 0"', follow="{every: 1s}")
    shop.sql(FIRST_ORDERS)

    def is_away() -> bool:
        return airflow.get("/api/v2/monitor/health")["scheduler"]["status"] == "unhealthy"

    def tries() -> list[int]:
        path = "/api/v2/dags/shop_capture/dagRuns/~/taskInstances"
        tasks = airflow.get(path)["task_instances"]
        return [task["try_number"] for task in tasks if task["task_id"] in ("drain", "merge")]

    with airflow.services("api-server", "dag-processor", "triggerer"), airflow.services("scheduler") as (scheduler,):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        wait_for("the capture is known", lambda: airflow.unpause("shop_capture"), SLOW_S)
        wait_for("the tables equal the source", lambda: is_equal(shop), SLOW_S)
        scheduler.kill()
        scheduler.wait()
        shop.sql("UPDATE shop.orders SET total = total + 1 WHERE customer <= 50")
        wait_for("they do again, without a scheduler", lambda: is_equal(shop), SLOW_S)
        wait_for("Airflow misses its scheduler", is_away, SLOW_S)
        shop.sql("UPDATE shop.orders SET total = total + 1 WHERE customer <= 50")
        wait_for("they do again, without a scheduler for long", lambda: is_equal(shop), SLOW_S)
        with airflow.services("scheduler"):
            airflow.wait_until_healthy("scheduler", seconds=SLOW_S)
            shop.sql("UPDATE shop.orders SET total = total + 1 WHERE customer <= 50")
            wait_for("they do again, with the new scheduler", lambda: is_equal(shop), SLOW_S)
            wait_for("it has begun other tries", lambda: min(tries()) > 1, SLOW_S)
            shop.sql("DELETE FROM shop.orders WHERE customer <= 20")
            wait_for("they do again, by these", lambda: is_equal(shop), SLOW_S)
            airflow.send("POST", "/api/v2/dags/shop_capture/dagRuns", {"logical_date": None})
            ended = dict.fromkeys(TASKS, "success")
            wait_for("the run gives way, and is green", lambda: states(shop)[0] == ended, SLOW_S)
            wait_for("the next one follows", lambda: states(shop)[-1]["merge"] == "running", SLOW_S)
            shop.sql("DELETE FROM shop.orders WHERE customer <= 40")
            wait_for("the tables equal the source", lambda: is_equal(shop), SLOW_S)
