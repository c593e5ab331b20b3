"""The stages of a DAG run as functions, and one of them as a process: `python -m tests.support.stages <stage> <input>`.

Airflow's operators do the same and no more (plugins/tidemark_airflow); what they add (XCom, assets, the Spark hook)
carries nothing that correctness needs."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.backfill.planning import BackfillRequest
from tidemark.backfill.proving import VerifyReport
from tidemark.backfill.verifying import VerifyRequest
from tidemark.config import PipelineConfig
from tidemark.ledger.backfills import Backfill
from tidemark.run import Run
from tidemark.startup import spare_pandas

FOLD_VARIABLE = "TIDEMARK_TEST_FOLD"  # "spark": few changes too go through Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def run(self, task: str, *, salt: bytes | None = None) -> Run:
        holder = f"{self.config.pipeline}/{self.run_id}/{task}"
        return Run(self.config, self.source, self.ledger, self.run_id, holder, salt)


def preflight(given: StageInput) -> Any:
    from tidemark.capture.preflight import preflight

    report = preflight(given.run("preflight"), spark_master="local[2]")
    report.raise_for_errors()
    return report


def changes_waiting(given: StageInput) -> bool:
    from tidemark.capture.waiting import changes_waiting

    return changes_waiting(given.config, source=given.source, ledger=given.ledger).waiting


def plan(given: StageInput) -> list[Backfill]:
    from tidemark.backfill.planning import plan

    return plan(given.run("plan"), request=given.request)


def read(given: StageInput) -> Any:
    """Under an exported snapshot what was planned so, then all that is left."""
    from tidemark.backfill.exported import read_exported
    from tidemark.backfill.ranges import read_chunks

    reader = given.run("read", salt=given.salt)
    return read_exported(reader) + read_chunks(reader)


def report(given: StageInput) -> Any:
    from tidemark.backfill.reporting import report

    return report(given.run("report"))


def plan_verify(given: StageInput) -> list[Backfill]:
    from tidemark.backfill.verifying import plan_verify

    assert given.verify is not None
    return plan_verify(given.run("plan"), request=given.verify)


def verified(given: StageInput) -> VerifyReport:
    from tidemark.backfill.proving import outcome_of

    return outcome_of(given.run("report"))


def drain(given: StageInput) -> Any:
    from tidemark.capture.drain import drain

    return drain(given.run("drain", salt=given.salt))


def merge(given: StageInput, apply: Callable[[str], None]) -> bool:
    """Ingest, plan, let `apply` run the application on the plan's URI, ingest. False if there was nothing to plan."""
    from tidemark.capture.merging import ingest, leased_plan
    from tidemark.formats import layout

    task = given.run("merge")
    ingest(task)
    with leased_plan(task) as plan:
        if plan is None:
            return False
        apply(f"{given.config.lake}/{layout.plan_file(plan.pipeline, plan.plan)}")
    ingest(task)
    return True


def apply(spark: SparkSession, uri: str) -> None:
    """What spark_apps/merge_batch.py does, on a session that is there already."""
    from spark_apps import merge_batch

    merge_batch.run(spark, uri)


def confirm(given: StageInput) -> Any:
    from tidemark.capture.confirm import confirm

    return confirm(given.run("confirm"))


def main(stage: str, path: str) -> None:
    spare_pandas()
    if os.environ.get(FOLD_VARIABLE) == "spark":
        from tidemark.target import few_changes

        few_changes.MAX_ROWS = -1  # type: ignore[misc]
    given: StageInput = pickle.loads(Path(path).read_bytes())
    match stage:
        case "plan":
            plan(given)
        case "read":
            read(given)
        case "drain":
            drain(given)
        case "merge":
            merge(given, lambda uri: apply(_driver(path), uri))
        case "confirm":
            confirm(given)
        case _:
            raise SystemExit(f"no stage {stage!r}")


def _driver(path: str) -> SparkSession:
    """On the JVM of the tests where the environment names it, else with one of its own."""
    from tests.support import local_spark

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return local_spark.attach()
    return local_spark.start(Path(path).parent)


if __name__ == "__main__":
    main(*sys.argv[1:])
