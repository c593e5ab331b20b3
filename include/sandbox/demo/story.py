"""`make demo`: a shop at work, captured by Airflow runs into Delta tables, and compared with its source row by row.

The shop has most of its rows before anything looks at it. A run of the capture creates slot and publication, a backfill
reads what was there while orders keep coming in, further runs of the capture bring what came.

With CLUSTER=1 merges run on a standalone Spark, and the lake is a bucket. With FOLLOW=1 one run follows the shop while
it is busy, and a line says how far behind the tables are.

The runs are real: scheduler, DAG processor and API server as `make up` starts them, each run triggered as a person
would. The demo starts afresh every time: source, ledger and lake of an earlier one are removed, Airflow's own record of
runs is kept.
Leaves with 1 where a run fails or any row differs.
"""

from __future__ import annotations

import os
import shutil
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from sandbox.checkout import Checkout
from sandbox.demo import shop
from sandbox.services import processes
from sandbox.services.airflow_api import AirflowApi, TaskRun
from sandbox.steps import StepFailed, Steps

PIPELINE = "shop"
CAPTURE, BACKFILL = f"{PIPELINE}_capture", f"{PIPELINE}_backfill"
TRADE_S = 40  # for how long the shop is busy while runs happen
_RUN_S = 900
_PARSED_S = 120


@dataclass(frozen=True, slots=True)
class TableReport:
    table: str
    source_rows: int
    current_rows: int
    differences: int
    changes: int


def run_demo(checkout: Checkout) -> int:
    started = time.monotonic()
    print("Tidemark's demo: a PostgreSQL shop, captured into Delta tables by Airflow runs\n")
    steps = Steps()
    before = processes.Services.read(checkout)
    was_running = before.airflow_runs
    if was_running:
        processes.refuse_another_kind(before)
    try:
        running = _start_afresh(checkout, steps)
        api = AirflowApi(running.ui, processes.UI_USER, running.ui_password)
        with steps.step(f"Airflow reads the DAGs {CAPTURE} and {BACKFILL}"):
            _wait_until_parsed(api)
        report = _capture(api, running, steps)
        with steps.step("compare every row of every table, with Spark"):
            log = checkout.logs / "demo-spark.log"
            with _stderr_in(log):
                reports, differences, history = _judge(checkout, running)
    finally:
        if not was_running:
            processes.down(checkout)
    _show(reports, history, report, steps)
    where = f"{_lake(running).root}/{PIPELINE}".removeprefix(f"{checkout.root}/")
    print(f"\n  All of it took {time.monotonic() - started:.0f} s. Delta tables: {where}.")
    print(
        f"  The runs in Airflow: {'' if was_running else 'type `make up`, then '}{running.ui}/dags/{BACKFILL}", end=""
    )
    print(f" (user {processes.UI_USER}, password {running.ui_password})")
    different = sum(report.differences for report in reports)
    print("".join(f"\n  {line}" for line in differences), end="")
    print("\n  Every row is equal." if not different else f"\n  {different} rows DIFFER.")
    return 1 if different else 0


# --- before ----------------------------------------------------------------------------------------------------------


def _start_afresh(checkout: Checkout, steps: Steps) -> processes.Services:
    running = processes.Services.read(checkout)
    processes.stop_shop(running)  # whose rows would come in behind the last run
    if running.airflow_runs:
        with steps.step("Airflow runs already; wait until the pipeline does not"):
            api = AirflowApi(running.ui, processes.UI_USER, running.ui_password)
            for dag_id in (CAPTURE, BACKFILL):
                if api.knows(dag_id):
                    api.pause(dag_id, True)
                    _until(
                        f"the active runs of {dag_id} end",
                        lambda dag_id=dag_id: api.active_runs(dag_id) == 0,
                        _RUN_S,
                    )
    running = processes.start_postgres(checkout, steps)
    with steps.step("an empty shop, an empty ledger, an empty lake"):
        for database in ("shop", "tidemark"):
            drop_database(running.server.conninfo(), database)
            processes.create_database(running.server, database)
        shop.create_tables(running.source)
        shutil.rmtree(checkout.made / "lake", ignore_errors=True)
    if not running.airflow_runs:
        processes.start_airflow(running, steps, scheduled=False)  # a scheduled run would take another's work
    if running.on_cluster:
        running.object_store.empty()
    return running


@dataclass(frozen=True, slots=True)
class _Lake:
    """Where the tables are, and what Spark is told to get there."""

    root: str
    settings: dict[str, str]
    secrets: dict[str, str]
    jars: list[Path]


def _lake(running: processes.Services) -> _Lake:
    from tidemark.config.airflow_connections import look_up
    from tidemark.config.file_reader import load

    config = load(running.pipelines / f"{PIPELINE}.yaml")
    jars = sorted(running.checkout.jars.glob("*.jar"))
    if config.lake_connection is None:
        return _Lake(config.lake, {}, {}, jars)
    access = look_up(config.lake_connection, environment=running.environment()).lake_access(config.lake)
    jars += sorted(running.checkout.jars.glob("s3a/*.jar"))
    secrets = access.driver_environment(running.checkout.made)
    return _Lake(config.lake, access.spark_settings(config.lake), secrets, jars)


def drop_database(server: str, name: str) -> None:
    """Drop a database with its slots and whatever is connected to it."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
            "WHERE database = %s AND active_pid IS NOT NULL",
            (name,),
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _wait_until_parsed(api: AirflowApi) -> None:
    _until(f"Airflow knows {CAPTURE} and {BACKFILL}", lambda: api.knows(CAPTURE) and api.knows(BACKFILL), _PARSED_S)
    for dag_id in (CAPTURE, BACKFILL):
        api.pause(dag_id, False)


def _until(fact: str, holds: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise StepFailed(f"Not within {seconds:.0f} s: {fact}. See .tidemark/logs")
        time.sleep(0.5)


# --- the runs --------------------------------------------------------------------------------------------------------


def _capture(api: AirflowApi, running: processes.Services, steps: Steps) -> list[str]:
    """A run that finds rows, their backfill and further runs while more are written, and one after the last row.

    Returns what the backfill reported.
    """
    busy = shop.Shop(running.source)
    with steps.step("the shop's first weeks, which nobody captures"):
        busy.open()
    failed: list[BaseException] = []
    if running.follows:
        from sandbox.demo.live_lag import follow

        run_id = follow(api, running, steps, (CAPTURE, BACKFILL), lambda: _trade(busy, failed))
    else:
        run_id = _runs_one_by_one(api, steps, busy, failed)
    if failed:
        raise StepFailed(f"The shop's own statements failed: {failed[0]}")
    written = ", ".join(f"{count:,} {kind}" for kind, count in busy.changed.items())
    written = f"the shop wrote {sum(busy.changed.values()):,} rows: {written}"
    print(textwrap.fill(written, 110, initial_indent="    ", subsequent_indent="    "))
    return str(api.result(BACKFILL, run_id, "report")).splitlines()


def _runs_one_by_one(api: AirflowApi, steps: Steps, busy: shop.Shop, failed: list[BaseException]) -> str:
    """The backfill's run."""
    _run(api, steps, CAPTURE, "capture 1, which finds rows that are older than it", is_exact=False)
    trading = threading.Thread(target=_trade, args=(busy, failed), daemon=True)
    trading.start()
    run_id = _run(api, steps, BACKFILL, "backfill of all tables, while the shop is busy")
    number = 2
    while trading.is_alive():
        _run(api, steps, CAPTURE, f"capture {number}, while the shop is busy")
        number += 1
    if not failed:
        _run(api, steps, CAPTURE, f"capture {number}, after the last row")
    return run_id


def _trade(busy: shop.Shop, failed: list[BaseException]) -> None:
    try:
        busy.trade(TRADE_S)
    except Exception as error:
        failed.append(error)


def _run(api: AirflowApi, steps: Steps, dag_id: str, title: str, *, is_exact: bool = True) -> str:
    """One run from its trigger to its green end; returns its id. Where the tables are not exact yet, its last task is
    skipped, and it alone."""
    with steps.step(title):
        run_id = api.trigger(dag_id)
        state = api.wait(dag_id, run_id, _RUN_S)
        tasks = api.tasks(dag_id, run_id)
        print(" · ".join(_said(task) for task in tasks), end=" … ")
    skipped = {task.task for task in tasks if task.state == "skipped"}
    if not is_exact and skipped != {"health"}:
        raise StepFailed(f"health was not skipped in run {run_id}, though the tables wait for their backfill")
    if state != "success":
        culprit = next((t for t in tasks if t.state == "failed"), None)
        lines = api.log(dag_id, run_id, culprit)[-30:] if culprit else []
        raise StepFailed("\n".join([f"The task {culprit and culprit.task} of run {run_id} failed:", *lines]))
    return run_id


def _said(task: TaskRun) -> str:
    return f"{task.task} {task.state}" if task.state != "success" else f"{task.task} {task.seconds:.1f}"


# --- after -----------------------------------------------------------------------------------------------------------


def _judge(checkout: Checkout, running: processes.Services) -> tuple[list[TableReport], list[str], list[Any]]:
    """All tables compared, with the first rows that differ; and the lines of one order's history."""
    lake = _lake(running)
    os.environ.update(checkout.environment(os.environ) | lake.secrets)
    from pyspark.sql import SparkSession

    from sandbox.checks.comparison import compare
    from tidemark.formats.layout import history_table
    from tidemark.names import TableName

    spark = (
        SparkSession.builder.appName("tidemark demo")
        .master("local[2]")
        .config(map={**lake.settings})
        .config("spark.jars", ",".join(str(jar) for jar in lake.jars))
        .config(
            "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
        )  # half the time of a short run
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )

    def history(table: str) -> Any:
        return spark.read.format("delta").load(f"{lake.root}/{history_table(PIPELINE, TableName.parse(table))}")

    try:
        reports, differences = [], []
        for table in shop.TABLES:
            comparison = compare(spark, source=running.source, lake=lake.root, pipeline=PIPELINE, table=table)
            changes = history(table).count()
            reports.append(
                TableReport(table, comparison.source_rows, comparison.current_rows, comparison.differences, changes)
            )
            differences += [f"{table}: {example}" for example in comparison.examples]
        lines = (
            history("shop.orders")
            .where(f"id = {shop.SHOWN_ORDER}")
            .orderBy("_commit_lsn", "_ordinal")
            .select("_op", "_commit_lsn", "_committed_at", "status", "total", "note")
            .collect()
        )
    finally:
        spark.stop()
    return reports, differences, lines


@contextmanager
def _stderr_in(log: Path) -> Iterator[None]:
    """What the JVM says goes to a file: it writes to the descriptor, not to sys.stderr."""
    terminal = os.dup(2)
    with log.open("w") as out:
        os.dup2(out.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _show(reports: list[TableReport], history: list[Any], backfill: list[str], steps: Steps) -> None:
    print("\n  What the backfill reported:")
    for sentence in backfill:
        print(textwrap.fill(sentence, 110, initial_indent="  ", subsequent_indent="      "))
    print(f"\n  {'table':<18}{'source':>10}{'current':>10}{'differences':>13}{'history':>10}")
    for report in reports:
        counts = f"{report.source_rows:>10,}{report.current_rows:>10,}{report.differences:>13,}{report.changes:>10,}"
        print(f"  {report.table:<18}{counts}")
    total = [
        sum(getattr(r, name) for r in reports) for name in ("source_rows", "current_rows", "differences", "changes")
    ]
    print(f"  {'':<18}{total[0]:>10,}{total[1]:>10,}{total[2]:>13,}{total[3]:>10,}")
    print(f"\n  The history of order {shop.SHOWN_ORDER}:")
    for line in history:
        lsn = f"{line['_commit_lsn'] >> 32:X}/{line['_commit_lsn'] & 0xFFFFFFFF:X}"
        when = f"{line['_committed_at']:%H:%M:%S}"
        print(f"  {when}  {lsn:<12}{line['_op']:<8}{line['status']:<11}{line['total']:>8}  {line['note'] or ''}")
    print("\n  Seconds per step:")
    for title, seconds in steps.took:
        print(f"  {seconds:>7.1f}  {title}")
