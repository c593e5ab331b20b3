"""The last task of a capture: red or skipped as long as the pipeline is not exact, and it tells of each thing once."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk import BaseNotifier, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from msgspec.structs import replace

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tests.support.backfills import open_backfill
from tests.support.runs import a_run, has_run
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import Alerts, PipelineConfig
from tidemark.config.file_reader import load
from tidemark.errors import DiskFull, UnexpectedError
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import backfill_marks, merge_states
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.observations import runs
from tidemark.observe.health import judge_by_ledger
from tidemark_airflow import offered_tables
from tidemark_airflow.failures import guarded
from tidemark_airflow.operators.health_operator import HealthOperator
from tidemark_airflow.operators.run_figures import timed

# From behind the join of the tables, whatever ids the server has given by then.
LATER_SNAPSHOT = "1000000000:1000000000:"
ERROR = ErrorRecord("TargetDiffers", "FIX_TARGET", "The Delta table has other columns. Undo that.")
told: list[str] = []


class Telling(BaseNotifier):
    """A notifier that keeps what it is told, or cannot be reached."""

    reachable = True

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Any) -> None:
        if not self.reachable:
            raise ConnectionError("the notifier's server is down")
        told.append(self.message)


@pytest.fixture
def config(tmp_path: Path, source: str, empty_ledger_database: str, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", postgres_connection(source))
    monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_LEDGER", postgres_connection(empty_ledger_database))
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        for table in ("orders", "stock"):
            connection.execute(f"CREATE TABLE shop.{table} (id int PRIMARY KEY)".encode())
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    config = load(file)
    preflight(a_run(config, source=source, ledger=empty_ledger_database)).raise_for_errors()
    has_run(empty_ledger_database)
    told.clear()
    return config


def park(ledger: str, table: str, error: ErrorRecord = ERROR) -> None:
    with open_ledger(ledger, "shop") as book:
        merge_states.park(book, table, error)


def execute(config: PipelineConfig, states: dict[str, str] | None = None, **arguments: Any) -> str:
    """One run of the task, after others that ended in these states."""
    ti = SimpleNamespace(
        dag_id="shop_capture",
        run_id="manual__1",
        task_id="health",
        map_index=-1,
        get_task_states=lambda *, dag_id, run_ids: {run_ids[0]: {"health": "running", **(states or {})}},
    )
    context: Any = {"ti": ti, "dag": None}
    return str(HealthOperator(task_id="health", config=config, **arguments).execute(context))


def with_notifier(config: PipelineConfig, **alerts: Any) -> PipelineConfig:
    return dataclasses.replace(config, alerts=Alerts(notifier=f"{__name__}.Telling", **alerts))


def test_a_pipeline_that_is_exact_is_green(config: PipelineConfig, empty_ledger_database: str) -> None:
    assert execute(config) == "shop: every table is exact; 2 tables are not proven yet"
    with open_ledger(empty_ledger_database, "shop") as book:
        (run,) = runs.last(book, 10)
    assert run["run_id"] == "shop_capture/manual__1"
    assert (run["verdict"], run["tables"]) == ("ok", {"exact": 2})
    assert run["source_lsn"] is not None
    assert run["confirmed_lsn"] is not None


def test_a_stage_that_failed_says_why_where_the_page_looks(config: PipelineConfig, empty_ledger_database: str) -> None:
    class Full(BaseOperator):
        @guarded
        @timed
        def execute(self, context: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    task = Full(task_id="drain")
    task.config = config
    context: Any = {"ti": SimpleNamespace(dag_id="shop_capture", run_id="manual__1", task_id="drain", map_index=-1)}
    with pytest.raises(DiskFull):
        task.execute(context)
    with open_ledger(empty_ledger_database, "shop") as book:
        health = judge_by_ledger(book, config)
    (concern,) = health.of("warning")
    assert concern.message.startswith(
        "The last run of shop_capture failed in drain. There is no space left on the disk"
    )
    assert "enlarge the disk" in concern.message


def test_a_parked_table_is_red_for_as_long_as_it_is_parked(
    config: PipelineConfig, empty_ledger_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    park(empty_ledger_database, "shop.orders")
    for _ in range(2):
        with pytest.raises(
            AirflowFailException, match=r"^shop: shop\.orders is parked since .*: TargetDiffers\. "
        ) as red:
            execute(config)
        assert f"tidemark unpark {config.path} shop.orders" in str(red.value)
        assert "\n" not in str(red.value)
    assert "Undo that." in capsys.readouterr().out, "the details stand in the log"
    with open_ledger(empty_ledger_database, "shop") as book:
        assert merge_states.unpark(book, "shop.orders")
    assert execute(config) == "shop: every table is exact; 2 tables are not proven yet"


def test_the_forms_learn_from_a_capture_which_tables_there_are(
    config: PipelineConfig, source: str, empty_ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(offered_tables, "offer", lambda pipeline, names: heard.append((pipeline, sorted(names))))
    execute(config, decides=False)
    assert heard == []
    execute(config)
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("DROP TABLE shop.stock")
        connection.execute('CREATE TABLE shop."a.b" (id int PRIMARY KEY)')
    preflight(a_run(config, source=source, ledger=empty_ledger_database)).raise_for_errors()
    execute(config)
    assert heard == [("shop", ["shop.orders", "shop.stock"]), ("shop", ['shop."a.b"', "shop.orders"])]


def test_it_is_skipped_instead_where_the_file_wants_a_warning(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    park(empty_ledger_database, "shop.orders")
    with pytest.raises(AirflowSkipException, match=r"shop\.orders is parked"):
        execute(dataclasses.replace(config, alerts=Alerts(health="warn")))
    with pytest.raises(AirflowSkipException, match=r"shop\.orders is parked"):
        execute(config, decides=False)


def test_a_run_of_which_a_task_failed_is_red_whatever_the_file_wants(config: PipelineConfig) -> None:
    ended = {"preflight": "success", "drain": "failed", "merge": "upstream_failed", "confirm": "upstream_failed"}
    for wanted in (config, dataclasses.replace(config, alerts=Alerts(health="warn"))):
        with pytest.raises(AirflowFailException, match=r"^shop: drain failed: see there$"):
            execute(wanted, ended)
    idle = execute(config, {"drain": "skipped", "merge": "skipped", "confirm": "success"})
    assert idle.endswith("every table is exact; 2 tables are not proven yet")


def test_each_thing_is_told_once_and_once_when_it_is_over(config: PipelineConfig, empty_ledger_database: str) -> None:
    config = with_notifier(config, health="warn")
    park(empty_ledger_database, "shop.orders")
    for _ in range(2):
        with pytest.raises(AirflowSkipException):
            execute(config)
    (message,) = told
    assert message.splitlines()[0].startswith("Pipeline shop: shop.orders is parked since ")
    assert "Undo that." in message
    assert f"tidemark unpark {config.path} shop.orders --anew" in message
    with open_ledger(empty_ledger_database, "shop") as book:
        assert merge_states.unpark(book, "shop.orders")
    for _ in range(2):
        execute(config)
    assert len(told) == 2
    assert "over, told " in told[1]
    assert "shop.orders is parked" in told[1]


def test_a_backfill_without_progress_is_told_once_and_once_when_it_goes_on(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    config = with_notifier(config, health="warn")
    with open_ledger(empty_ledger_database, "shop") as book:
        open_backfill(book, "shop.orders", pipeline="shop", snapshot=LATER_SNAPSHOT)
        book.execute("UPDATE tidemark.backfills SET active_at = active_at - interval '3 hours'")
    for _ in range(2):
        with pytest.raises(AirflowSkipException, match=r"shop\.orders has a backfill that stands still"):
            execute(config)
    (message,) = told
    assert "airflow dags trigger shop_backfill" in message
    with open_ledger(empty_ledger_database, "shop") as book:
        book.execute("UPDATE tidemark.backfills SET active_at = clock_timestamp()")
    for _ in range(2):
        execute(config)
    (_, over) = told
    assert ": over, told " in over


def test_tables_that_were_parked_for_one_reason_are_one_message(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    for table in ("shop.orders", "shop.stock"):
        park(empty_ledger_database, table)
    with pytest.raises(AirflowFailException, match="2 tables are parked"):
        execute(with_notifier(config))
    (message,) = told
    assert message.splitlines()[0] == "Pipeline shop: 2 tables are parked: shop.orders, shop.stock"


def test_the_message_has_the_commands_of_every_way_that_it_offers(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    error = ErrorRecord("TargetDiffers", "FIX_TARGET", "It changed. Do this or that.")
    park(empty_ledger_database, "shop.orders", error)
    park(empty_ledger_database, "shop.stock", replace(error, kind="MergeFailed", move="RETRY"))
    with pytest.raises(AirflowFailException):
        execute(with_notifier(config))
    stock, orders = sorted(told, key=lambda message: "shop.orders is" in message)
    unpark = f"tidemark unpark {config.path} shop.orders"
    backfill = """airflow dags trigger shop_backfill --conf '{"tables": ["shop.orders"]}'"""
    assert orders.splitlines()[2:] == [
        f"To go on with its Delta tables, once they fit: {unpark}",
        f"To begin anew, once shop/history/shop/orders and shop/current/shop/orders are removed from {config.lake}: "
        f"{unpark} --anew; then let a run of shop_capture end; then: {backfill}",
    ]
    assert "It is tried again 1 h after the last time" in stock
    assert "--anew" not in stock


def test_a_notifier_that_fails_is_called_again(
    config: PipelineConfig, empty_ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_notifier(config)
    park(empty_ledger_database, "shop.orders")
    monkeypatch.setattr(Telling, "reachable", False)
    with pytest.raises(UnexpectedError, match="ConnectionError"):
        execute(config)
    monkeypatch.setattr(Telling, "reachable", True)
    with pytest.raises(AirflowFailException):
        execute(config)
    assert len(told) == 1


def test_a_table_parked_anew_is_told_anew(config: PipelineConfig, empty_ledger_database: str) -> None:
    config = with_notifier(config)
    for _ in range(2):
        park(empty_ledger_database, "shop.orders")
        with pytest.raises(AirflowFailException):
            execute(config)
        with open_ledger(empty_ledger_database, "shop") as book:
            assert merge_states.unpark(book, "shop.orders")
    assert sum("over, told" not in message for message in told) == 2


def test_a_source_that_is_away_is_neither_new_nor_over_for_the_slot(
    config: PipelineConfig, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_notifier(config)
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot('tidemark_shop')")
    with pytest.raises(AirflowFailException, match='"tidemark_shop" does not exist'):
        execute(config)
    with monkeypatch.context() as away:
        away.setenv("AIRFLOW_CONN_SHOP_SOURCE", postgres_connection("host=127.0.0.1 port=1 user=u dbname=d"))
        with pytest.raises(AirflowFailException, match="source cannot be seen"):
            execute(config)
    with pytest.raises(AirflowFailException, match='"tidemark_shop" does not exist'):
        execute(config)
    gone, away_since, back = told
    assert "does not exist" in gone
    assert "The source cannot be seen" in away_since
    assert "over, told" in back
    assert "The source cannot be seen" in back


def test_while_the_ledger_is_away_every_run_tells_it(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_LEDGER", postgres_connection("host=127.0.0.1 port=1 user=u dbname=d"))
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="ledger cannot be seen"):
            execute(with_notifier(config))
    assert len(told) == 2


def test_what_is_being_backfilled_is_told_as_over_only_when_it_is_filled(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    config = with_notifier(config)
    with open_ledger(empty_ledger_database, "shop") as book:
        backfill_marks.mark(book, "shop.orders", backfill_marks.GAP, "changes are gone")
    with pytest.raises(AirflowFailException, match=r"shop\.orders needs a backfill since") as red:
        execute(config)
    assert "airflow dags trigger shop_backfill" in str(red.value)
    with pytest.raises(AirflowSkipException, match=r"shop\.orders needs a backfill since"):
        execute(dataclasses.replace(config, auto_backfill=True))
    assert len(told) == 1
    with open_ledger(empty_ledger_database, "shop") as book:
        backfill_marks.clear(book, "shop.orders")
    execute(config)
    assert len(told) == 2


def test_a_new_table_that_waits_for_its_first_backfill_is_not_red(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    with open_ledger(empty_ledger_database, "shop") as book:
        backfill_marks.mark(book, "shop.orders", backfill_marks.EXISTING_ROWS, "it had rows before it was captured")
    with pytest.raises(AirflowSkipException, match="airflow dags trigger shop_backfill"):
        execute(with_notifier(config))
    assert told == []


def test_a_table_whose_change_is_not_followed_keeps_its_tables_first(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    park(empty_ledger_database, "shop.orders", ErrorRecord("SchemaNotFollowed", "BACKFILL", "It changed."))
    with pytest.raises(AirflowFailException, match="To go on by itself: rename its columns at the source"):
        execute(with_notifier(config))
    (message,) = told
    ways = message.splitlines()[2:]
    assert [way.partition(":")[0].partition(",")[0] for way in ways] == ["To follow the change", "To begin anew"]


def test_a_remedy_that_only_begins_anew_offers_no_way_that_would_park_the_table_again(
    config: PipelineConfig, empty_ledger_database: str
) -> None:
    park(empty_ledger_database, "shop.orders", ErrorRecord("KeyValueUnfit", "BACKFILL", "A key does not fit."))
    with pytest.raises(
        AirflowFailException, match="Begin it anew: remove its Delta tables, then tidemark unpark"
    ) as red:
        execute(with_notifier(config))
    assert str(red.value).endswith("shop.orders --anew")
    (message,) = told
    assert [way.partition(",")[0] for way in message.splitlines()[2:]] == ["To begin anew"]
