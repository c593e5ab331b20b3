"""SIGKILL once at every step of plan, reader, drain, merge, sweep and confirm, as Airflow runs them: `airflow dags
test`, run again until it ends well, and a scheduler that retries what died. The source changes and capture runs in
between, and in the end every row of `current` is compared with the source's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.airflow.captured_shop import FIRST_ORDERS, SLOW_S, TABLES, Shop, open_shop
from tests.support import failpoint_names
from tidemark import failpoints

READING = {name for name in failpoint_names.NAMES if name.startswith(("plan.", "read."))}


@pytest.fixture
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """Its rows are older than its slot, which a first run of the capture has made."""
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sql(FIRST_ORDERS)
        opened.configure(health="warn")  # its rows need a backfill
        _capture(opened)
        yield opened


@dataclass(slots=True)
class Killing:
    """The folder in which whoever dies leaves the name of the place, and what the source sees meanwhile."""

    shop: Shop
    folder: Path
    changes: int = field(default=0)

    @property
    def variables(self) -> dict[str, str]:
        return {failpoints.VARIABLE: f"{failpoints.EACH}{self.folder}"}

    def reached(self) -> set[str]:
        return {file.name for file in self.folder.iterdir()}

    def change(self) -> None:
        """Changes of every kind; an order's note lies out of line, so that its update does not carry it."""
        self.changes += 1
        n = self.changes
        self.shop.sql(
            f"UPDATE shop.orders SET total = total + 1 WHERE customer % 7 = {n % 7};"
            f"DELETE FROM shop.orders WHERE customer = {n};"
            f"INSERT INTO shop.orders (customer, total, note) VALUES ({1000 + n}, {n}, 'later');"
            f"UPDATE shop.customers SET id = id + 10000 WHERE id = {5 * n};"
            f"DELETE FROM shop.customers WHERE id = {5 * n + 1};"
            f"INSERT INTO shop.audit (what) VALUES ('{n}'), ('{n}');"
            "DELETE FROM shop.audit WHERE ctid = (SELECT min(ctid) FROM shop.audit);"
        )

    def let_leases_end(self) -> None:
        """As if the killed had been dead for longer than a lease lasts."""
        with psycopg.connect(self.shop.ledger) as connection:
            connection.execute("UPDATE tidemark.leases SET expires_at = clock_timestamp() - interval '1 second'")


@pytest.fixture
def killing(shop: Shop, tmp_path: Path) -> Killing:
    folder = tmp_path / "killed"
    folder.mkdir()
    return Killing(shop, folder)


@pytest.mark.thorough
def test_dags_test_that_is_killed_at_every_step_is_finished_by_running_it_again(killing: Killing) -> None:
    shop = killing.shop
    # What is wanted; once that is done, the tables by name: their backfill is a repair.
    conf: dict[str, object] = {"chunk_rows": 100, "readers": 1}
    minute, finished = 0, False
    for number in range(1, 2 * len(failpoint_names.NAMES)):
        before = killing.reached()
        if finished or before < READING:
            # Another run, which goes on where the killed one ended. Once all is read there is nothing to go on with but
            # the killed run itself: a date names a run.
            minute += 1
        date = f"2026-01-01T00:{minute:02}:00"
        tried = shop.airflow.run("dags", "test", "shop_backfill", date, "--conf", json.dumps(conf), **killing.variables)
        finished = tried.returncode == 0
        assert finished or killing.reached() > before, f"it died of something else:\n{tried.stdout[-6000:]}"
        if finished and killing.reached() == set(failpoint_names.NAMES):
            break
        if finished:
            conf["tables"] = list(TABLES)
        killing.let_leases_end()
        killing.change()
        if number % 3 == 0:
            _capture(shop)
            killing.change()
    assert finished
    assert killing.reached() == set(failpoint_names.NAMES)
    _are_in_sync(killing)


@pytest.mark.thorough
def test_a_backfill_whose_tasks_are_killed_at_every_step_beside_the_capture_is_finished_by_retries(
    killing: Killing,
) -> None:
    shop = killing.shop
    shop.configure(schedule='"* * * * *"', health="warn")
    airflow = replace(shop.airflow, settings=killing.variables)
    path = "/api/v2/dags/shop_backfill/dagRuns"
    with airflow.services("api-server", "scheduler", "dag-processor"):
        airflow.wait_until_healthy("scheduler", "dag_processor", seconds=SLOW_S)
        for dag in ("shop_backfill", "shop_capture"):
            wait_for(f"{dag} is known", lambda dag=dag: airflow.unpause(dag), SLOW_S)
        conf = {"chunk_rows": 50, "readers": 3}
        run = airflow.send("POST", path, {"logical_date": None, "conf": conf})["dag_run_id"]

        undisturbed = 0
        while (state := _state(shop, run)) != "success" or killing.reached() != set(failpoint_names.NAMES):
            if state == "failed":  # its retries are used up; a person clears it
                undisturbed += killing.reached() == set(failpoint_names.NAMES)
                assert undisturbed <= 2, f"nobody is killed any more, and the run still fails: {_tries(shop, run)}"
                airflow.send("POST", f"{path}/{run}/clear", {"dry_run": False})
                state = _state(shop, run)
            killing.change()
            _until_somebody_dies(killing, run, state)
    assert max(_tries(shop, run).values()) > 1, "Airflow retries what died"
    _are_in_sync(killing)


def _capture(shop: Shop) -> None:
    """One run of the capture that nobody disturbs."""
    process = shop.airflow.run("dags", "test", "shop_capture")
    assert process.returncode == 0, process.stdout[-6000:]


def _until_somebody_dies(killing: Killing, run: str, state: str) -> None:
    """Or until the run is in another state. A retry waits for half a minute, and for the leases of the dead."""
    before = killing.reached()

    def is_news() -> bool:
        return killing.reached() > before or _state(killing.shop, run) != state

    wait_for(f"somebody is killed besides {sorted(before)}, or the run is no longer {state}", is_news, 2 * SLOW_S)


def _state(shop: Shop, run: str) -> str:
    with psycopg.connect(shop.airflow.metadata) as connection:
        query = "SELECT state FROM dag_run WHERE dag_id = 'shop_backfill' AND run_id = %s"
        (state,) = connection.execute(query, (run,)).fetchone() or ("gone",)
        return str(state)


def _tries(shop: Shop, run: str) -> dict[tuple[str, int], int]:
    """How often each task of a run of the backfill was begun."""
    with psycopg.connect(shop.airflow.metadata) as connection:
        task_rows = connection.execute(
            "SELECT task_id, map_index, try_number FROM task_instance WHERE dag_id = 'shop_backfill' AND run_id = %s",
            (run,),
        )
        return {(task, index): tries for task, index, tries in task_rows}


def _are_in_sync(killing: Killing) -> None:
    """After one more run of the capture the tables are the source's, and nothing says that they need a backfill."""
    killing.let_leases_end()
    killing.change()
    _capture(killing.shop)
    assert killing.shop.differences() == {}
    with psycopg.connect(killing.shop.ledger) as connection:
        marked = connection.execute('SELECT "table" FROM tidemark.tables WHERE needs_backfill').fetchall()
    assert marked == []
