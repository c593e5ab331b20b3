"""Deferred merges, and merges spread over several Spark applications, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, SLOW_S, Shop, open_shop
from tests.support import failpoint_names
from tidemark import failpoints

ORDERS = "shop.orders"
TWO = "{every: 1d, applications: 2}"
pytestmark = pytest.mark.thorough


@pytest.fixture
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.configure(merge=TWO)
        opened.sound()
        yield opened


def plans(shop: Shop) -> list[tuple[list[str], bool]]:
    """The tables of each plan, oldest plan first, and whether its result was ingested."""
    with psycopg.connect(shop.ledger) as connection:
        rows = connection.execute(
            "SELECT ARRAY(SELECT jsonb_object_keys(tables) ORDER BY 1), ingested_at IS NOT NULL "
            "FROM tidemark.plans ORDER BY created_at, plan"
        )
        return [(names, ingested) for names, ingested in rows]


def merges(shop: Shop) -> list[tuple[int, str, int]]:
    """Of the last run each application: its number, its end, its tries."""
    with psycopg.connect(shop.airflow.metadata) as connection:
        return connection.execute(
            "SELECT map_index, state, try_number FROM task_instance WHERE task_id = 'merge' AND run_id = "
            "(SELECT run_id FROM dag_run WHERE dag_id = 'shop_capture' ORDER BY id DESC LIMIT 1) ORDER BY 1"
        ).fetchall()


def only_at(name: str, folder: Path) -> str:
    """The value of the variable with which the first process that comes to this failpoint dies there, and no other."""
    folder.mkdir()
    for other in failpoint_names.NAMES:
        if other != name:
            (folder / other).touch()
    return f"{failpoints.EACH}{folder}"


def test_two_applications_share_a_run_and_one_that_dies_merges_its_tables_alone(shop: Shop, tmp_path: Path) -> None:
    shop.execute(FIRST_ORDERS)
    first = shop.airflow.run("dags", "test", "shop_capture")
    assert first.returncode == 0, first.stdout[-6000:]
    assert merges(shop) == [(0, "success", 1)], "with little to do there is one application"
    assert shop.differences() == {}

    with psycopg.connect(shop.ledger) as connection:  # as if the orders took minutes
        connection.execute(
            """
            UPDATE tidemark.plans SET result = jsonb_set(result, '{tables}', (
                   SELECT jsonb_agg(CASE WHEN t ->> 'table' = %s THEN t || '{"seconds": 300}' ELSE t END)
                     FROM jsonb_array_elements(result -> 'tables') t))
            """,
            (ORDERS,),
        )
    shop.execute(MORE_ORDERS)
    deadly = {failpoints.VARIABLE: only_at("merge.before_result", tmp_path / "reached")}
    second = shop.airflow.run("dags", "test", "shop_capture", **deadly)
    assert second.returncode == 0, second.stdout[-6000:]
    assert second.stdout.count("Spark-Submit cmd") == 3, "two applications, and the one that died once more"
    assert [state for _, state, _ in merges(shop)] == ["success"] * 2
    others = ["shop.audit", "shop.customers"]
    dead, alive = ([ORDERS], others) if ([ORDERS], False) in plans(shop) else (others, [ORDERS])
    assert sorted(plans(shop)[1:]) == sorted([(dead, False), (dead, True), (alive, True)])
    assert shop.differences() == {}
    assert {uri.rpartition("/")[2] for uri, _ in shop.airflow.asset_events()} == {"orders", "customers", "audit"}


def test_a_scheduled_run_defers_what_a_later_one_merges_by_the_clock(shop: Shop) -> None:
    airflow = shop.airflow
    shop.execute(FIRST_ORDERS)
    assert airflow.run("dags", "test", "shop_capture").returncode == 0  # by hand: all of it, and from then on it waits
    earlier = len(airflow.task_states("shop_capture"))
    shop.configure(schedule='"* * * * *"', merge="{every: 2m, applications: 2}")
    shop.execute(MORE_ORDERS)

    def runs() -> list[dict[str, str]]:
        states = airflow.task_states("shop_capture")[earlier:]
        assert not [run for run in states if {"failed", "upstream_failed"} & set(run.values())], states
        return [run for run in states if run.get("confirm") == "success"]

    with airflow.services("api-server", "scheduler", "dag-processor", "triggerer"):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        wait_for("the DAG is known", lambda: airflow.unpause("shop_capture"), SLOW_S)
        wait_for("a run merged what waited", lambda: "success" in [run["merge"] for run in runs()], SLOW_S)
        assert shop.differences() == {}
        confirmed = shop.confirmed_lsn()
        shop.execute("UPDATE shop.orders SET total = total + 1 WHERE customer <= 100")
        wait_for(
            "a run staged it, confirmed it, and merged nothing",
            lambda: [(run["drain"], run["merge"]) for run in runs()][-1:] == [("success", "skipped")],
            SLOW_S,
        )
        assert shop.confirmed_lsn() > confirmed
        assert set(shop.differences()) == {ORDERS}
        wait_for("another one merged it", lambda: shop.differences() == {}, SLOW_S)
