"""The stages of a DAG run as functions, and one of them as a process: `python -m tests.support.stages <stage> <input>`.

Airflow's operators do the same and no more (plugins/tidemark_airflow); what they add (XCom, assets, the Spark hook)
carries nothing that correctness needs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.verify_report import VerifyReport
from tidemark.backfill.verifying import VerifyRequest
from tidemark.config import PipelineConfig
from tidemark.ledger.reading.backfills import Backfill
from tidemark.run import Run
from tidemark.spark_submit.spark_connection import SparkConnection
from tidemark.staging.pandas_import import block_pandas_import

# "spark": few changes too go through Spark; "public": and Delta's own classes count as another Delta's
FOLD_VARIABLE = "TIDEMARK_TEST_FOLD"

# Of a run that follows: the least between two batches.
EVERY_S = 0.5

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.capture.following.window import FollowWindow
    from tidemark.capture.merge_planning import PlanScope
    from tidemark.spark_submit.plan_orders import PlanOrders


@dataclass(frozen=True, slots=True)
class StageInput:
    """Everything a task gets; `run_id` is part of the holder, so that the same run's retry is the same holder."""

    config: PipelineConfig
    source: str
    ledger: str
    run_id: str
    salt: bytes
    request: BackfillRequest = field(default_factory=BackfillRequest)
    verify: VerifyRequest | None = None
    wait_s: float = 0.0  # for leases of others
    ends_at: datetime | None = None  # of a run that follows the source

    def run(self, task: str, *, salt: bytes | None = None) -> Run:
        return Run(self.config, self.source, self.ledger, self.run_id, self.holder(task), salt)

    def holder(self, task: str) -> str:
        return f"{self.config.pipeline}/{self.run_id}/{task}"


def preflight(stage_input: StageInput) -> Any:
    from tidemark.capture.preflight.preflight_report import preflight

    report = preflight(stage_input.run("preflight"), spark=SparkConnection("local[2]"))
    report.raise_for_errors()
    return report


def changes_waiting(stage_input: StageInput, *, by_hand: bool = False) -> bool:
    from tidemark.capture.waiting import changes_waiting

    databases = {"source": stage_input.source, "ledger": stage_input.ledger}
    return changes_waiting(stage_input.config, **databases, all_of_them=by_hand).waiting


def plan(stage_input: StageInput) -> list[Backfill]:
    from tidemark.backfill.planning import plan

    return plan(stage_input.run("plan"), request=stage_input.request)


def read(stage_input: StageInput) -> Any:
    """Under an exported snapshot what was planned so, then all that is left."""
    from tidemark.backfill.exported_snapshot import read_exported
    from tidemark.backfill.range_reading import read_chunks

    reader = stage_input.run("read", salt=stage_input.salt)
    return read_exported(reader) + read_chunks(reader)


def report(stage_input: StageInput) -> Any:
    from tidemark.backfill.backfill_report import report

    return report(stage_input.run("report"))


def plan_verify(stage_input: StageInput) -> list[Backfill]:
    from tidemark.backfill.verifying import plan_verify

    assert stage_input.verify is not None
    return plan_verify(stage_input.run("plan"), request=stage_input.verify)


def verified(stage_input: StageInput) -> VerifyReport:
    from tidemark.backfill.verify_report import read_report

    return read_report(stage_input.run("report"))


def drain(stage_input: StageInput) -> Any:
    from tidemark.capture.drain import drain

    return drain(stage_input.run("drain", salt=stage_input.salt), wait_s=stage_input.wait_s)


def merge(
    stage_input: StageInput, apply: Callable[[str], None], wanted: PlanScope | None = None, task_name: str = "merge"
) -> bool:
    """Ingest, plan, let `apply` run the application on the plan's URI, ingest. False if there was nothing to plan."""
    from tidemark.capture.merge_planning import PlanScope, ingest, leased_plan
    from tidemark.formats import layout

    task = stage_input.run(task_name)
    ingest(task)
    with leased_plan(task, wanted or PlanScope(), wait_s=stage_input.wait_s) as plan:
        if plan is None:
            return False
        apply(f"{stage_input.config.lake}/{layout.plan_file(plan.pipeline, plan.plan)}")
    ingest(task)
    return True


def apply(spark: SparkSession, uri: str) -> None:
    """What spark_apps/merge_batch.py does, on a session that is there already."""
    from spark_apps import merge_batch

    merge_batch.run(spark, uri)


def confirm(stage_input: StageInput) -> Any:
    from tidemark.capture.confirm import confirm

    return confirm(stage_input.run("confirm"), wait_s=stage_input.wait_s)


def follow_drain(stage_input: StageInput) -> Any:
    from tidemark.capture.following.drain_cycles import follow

    window = _window(stage_input)
    return follow(stage_input.run("drain", salt=stage_input.salt), window, wait_s=stage_input.wait_s)


def follow_merge(stage_input: StageInput, path: str) -> None:
    """Until the run is over. Its Spark application is a process of its own, which this does not end if it is killed."""
    from tidemark.capture.following.merge_cycles import MergeCycles
    from tidemark.spark_submit.plan_orders import plan_orders
    from tidemark.storage.store import Store

    run = stage_input.run("merge")
    with plan_orders(run, Store(run.config.lake, run.config.lake_access)) as orders:
        application = _Application(orders, path)
        try:
            cycles = MergeCycles(run, _window(stage_input), stage_input.holder("drain"), lambda: False)
            for _ in cycles.results(application):
                pass
            orders.end()
            application.process.wait(60)
        finally:
            application.process.kill()


def _window(stage_input: StageInput) -> FollowWindow:
    from tidemark.capture.following.window import FollowWindow

    assert stage_input.ends_at is not None
    return FollowWindow(stage_input.ends_at - timedelta(hours=1), stage_input.ends_at, EVERY_S)


class _Application:
    """What spark_apps/follow_plans.py does, with a JVM of its own."""

    def __init__(self, orders: PlanOrders, path: str) -> None:
        self._orders = orders
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
        command = [sys.executable, "-m", "tests.support.stages", "follow_plans", path, orders.manifest]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    def is_ready(self) -> bool:
        return self._orders.is_ready()

    def order(self, plan: str) -> None:
        self._orders.order(plan)

    def has_ended(self) -> bool:
        return self.process.poll() is not None


def maintain(stage_input: StageInput, spark: Callable[[], SparkSession]) -> Any:
    """Both tasks of the maintenance DAG, a month from now, with thresholds for tables of a few files."""
    from spark_apps import compact_tables
    from tidemark.formats import layout
    from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult
    from tidemark.maintenance import compaction_runs
    from tidemark.maintenance.staging_cleanup import retire
    from tidemark.target.table_compaction import MANY_SMALL

    MANY_SMALL.update(history=2, current=2)  # type: ignore[attr-defined]

    def later() -> datetime:
        return datetime.now(UTC) + timedelta(days=30)

    def apply(plan: CompactionPlan) -> CompactionResult:
        compact_tables.compact(spark(), f"{plan.lake}/{layout.maintenance_file(plan.pipeline, plan.plan)}")
        result = compaction_runs.take_result(stage_input.config, plan)
        assert result is not None
        return result

    retired = retire(replace(stage_input.run("retire"), now=later))
    compacting = stage_input.run("compact")
    plan = compaction_runs.plan_inspection(compacting)
    if plan is None:  # nothing was merged since the last one
        return retired, {"left": [], "compacted": 0}
    results = [apply(plan)]
    for group in compaction_runs.groups(compacting.config, results[0]):
        with compaction_runs.plan_current(compacting, group) as leased_plan:
            if leased_plan is not None:
                results.append(apply(leased_plan))
    return retired, compaction_runs.note(compacting, plan.tables, results)


def main(stage: str, path: str, manifest: str = "") -> None:
    block_pandas_import()
    if os.environ.get(FOLD_VARIABLE) in ("spark", "public"):
        from tidemark.target import merge_choice
        from tidemark.target.delta import internals

        for name in ("FEW", "MANY"):
            setattr(merge_choice, name, replace(getattr(merge_choice, name), rows=-1))
        if os.environ[FOLD_VARIABLE] == "public":
            internals.misfit = lambda spark: "a test says so"
    stage_input: StageInput = pickle.loads(Path(path).read_bytes())
    match stage:
        case "plan":
            plan(stage_input)
        case "read":
            read(stage_input)
        case "drain":
            drain(stage_input)
        case "merge":
            merge(stage_input, lambda uri: apply(_driver(path, stage_input), uri))
        case "confirm":
            confirm(stage_input)
        case "follow_drain":
            follow_drain(stage_input)
        case "follow_merge":
            follow_merge(stage_input, path)
        case "follow_plans":
            from spark_apps import follow_plans

            follow_plans.run(_driver(path, stage_input), manifest)
        case "maintain":
            maintain(stage_input, lambda: _driver(path, stage_input))
        case _:
            raise SystemExit(f"no stage {stage!r}")


def _driver(path: str, stage_input: StageInput) -> SparkSession:
    """On the JVM of the tests where the environment names it, else with one of its own."""
    from tests.support import local_spark

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return local_spark.attach()
    spark = local_spark.start(Path(path).parent)
    lake = stage_input.config.lake
    if lake.startswith("s3a://"):
        from tests.support import s3_server

        s3_server.let_in(spark, lake, stage_input.config.lake_access)
    elif lake.startswith("gs://"):
        from tests.support import google_server

        google_server.let_in(spark, lake, stage_input.config.lake_access)
    elif lake.startswith("abfss://"):
        from tests.support import azure_server

        azure_server.let_in(spark, lake, stage_input.config.lake_access)
    return spark


if __name__ == "__main__":
    main(*sys.argv[1:])
