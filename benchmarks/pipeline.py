"""One pipeline for a benchmark: an embedded server as source and ledger, the stages of its runs, and spark-submit.

The stages are the library's own, as Airflow's tasks call them; a merge is started as the operator starts it, with the
same flags and the same archive of classes. A plain script beside it is started by the same program, with Delta's
settings and with few partitions, as for a small machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from sandbox.services.postgres import PostgresServer, running
from tidemark.capture.confirm import ConfirmResult, confirm
from tidemark.capture.drain import DrainResult, drain
from tidemark.capture.merge_planning import ingest, leased_plan
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import PipelineConfig, TableRule
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger import migrations
from tidemark.run import Run
from tidemark.spark_submit import spark_jars
from tidemark_airflow.driver import submission
from tidemark_airflow.driver.class_archive import class_archive

SERVER: Final = {"max_wal_size": "8GB", "shared_buffers": "512MB"}

# What every script that uses Delta sets, by Delta's own documentation.
DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# And what somebody sets who knows that tables and machine are small.
SMALL: Final = {"spark.sql.shuffle.partitions": "4", "spark.databricks.delta.snapshotPartitions": "2"}
QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


class Refused(RuntimeError):
    """What was measured did not do what it should have, so that its time says nothing."""


@dataclass
class Pipeline:
    """The stages of a pipeline's runs, one run after the other; each drain begins another. Copies of different `dag`
    work side by side, as the DAGs do."""

    config: PipelineConfig
    source: str
    ledger: str
    dag: str = "capture"
    runs: int = 0
    merge_wait_s: float = 0.0  # for a table that another DAG's merge has
    slot_wait_s: float = 0.0  # for another DAG's drain

    def task(self, name: str) -> Run:
        run_id = f"{self.dag}/{self.runs}"
        return Run(self.config, self.source, self.ledger, run_id, f"{run_id}/{name}")

    def begin(self) -> None:
        """Slot, publication and generation: the first run of the capture, as long as nobody changes anything."""
        preflight(self.task("preflight")).raise_for_errors()
        self.drain()
        confirm(self.task("confirm"))

    def drain(self) -> DrainResult:
        self.runs += 1
        drained = drain(self.task("drain"), wait_s=self.slot_wait_s)
        if not drained.reached_target:
            raise Refused("the drain ended before its heartbeat")
        return drained

    def plan(self) -> MergePlan:
        """A plan of all that is staged, with its file."""
        with leased_plan(self.task("merge")) as plan:
            if plan is None:
                raise Refused("nothing was staged")
            return plan

    def merge(self) -> None:
        """As the task does it: the results that are there, a plan, its application, its result."""
        run = self.task("merge")
        ingest(run)
        with leased_plan(run, wait_s=self.merge_wait_s) as plan:
            if plan is not None:
                submitted(plan)
        for table in ingest(run).tables:
            if table.error is not None:
                raise Refused(f"{table.table}: {table.error}")

    def confirm(self) -> ConfirmResult:
        return confirm(self.task("confirm"), wait_s=self.slot_wait_s)

    def run(self) -> None:
        """From drain to confirm."""
        self.drain()
        self.merge()
        confirmed = self.confirm()
        if confirmed.after != confirmed.staged:
            raise Refused(f"confirmed is {confirmed.after}, staged {confirmed.staged}")

    def table(self, kind: str, name: str) -> Path:
        """Folder of a Delta table of public.name, kind "current" or "history"."""
        return Path(self.config.lake, self.config.pipeline, kind, "public", name)


@contextmanager
def one_pipeline(folder: Path, **settings: Any) -> Iterator[Pipeline]:
    """A server with an empty source and a ledger, and a pipeline over all of `public`; nothing of it exists yet at the
    source. `settings` are the pipeline's."""
    with running(folder / "postgres", 18, **SERVER) as server:
        yield pipeline_on(server, "source", folder / "lake", **settings)


def pipeline_on(server: PostgresServer, name: str, lake: Path, **settings: Any) -> Pipeline:
    source, ledger = (new_database(server, database) for database in (name, f"{name}_ledger"))
    migrations.migrate(ledger)
    chosen: dict[str, Any] = {
        "pipeline": "bench",
        "source_connection": "source",
        "slot": f"bench_{name}",
        "publication": "bench",
        "manage_publication": True,
        "tables": (TableRule("public.*"),),
        "lake": str(lake),
        "ledger_connection": "ledger",
        **settings,
    }
    return Pipeline(PipelineConfig(**chosen), source, ledger)


def new_database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.conninfo(name)


# --- spark-submit ----------------------------------------------------------------------------------------------------


def submitted(plan: MergePlan) -> None:
    """spark-submit of the merge application, as the operator has it, on `local[*]`."""
    uri = f"{plan.lake}/{layout.plan_file(plan.pipeline, plan.plan)}"
    as_the_operator_submits("merge_batch", uri, submission.first_compiler_alone(plan))
    errors_of(Path(uri).parent / "result.json")


def as_the_operator_submits(name: str, manifest: str, flags: dict[str, str]) -> None:
    """spark-submit of one of the merge's applications, to its end; `flags` are those of its driver's JVM."""
    environment = submission.driver_environment() | submission.quiet_log({}) | flags
    with class_archive(submission.chosen_jvm_flags({})) as archive:
        environment |= submission.with_jvm_flags(archive.flags, environment) | archive.environment
        application = spark_jars.application(name, os.environ)
        options = ["--properties-file", archive.properties_file] if archive.properties_file else []
        spark_submit(application, ["--manifest", manifest], environment=environment, options=options)
        archive.ended_well = True


def errors_of(result: Path) -> PlanResult:
    """The application's result; raises if it has an error."""
    merged = PlanResult.from_json(result.read_text())
    if errors := [table.error for table in merged.tables if table.error is not None]:
        raise Refused(str(errors[0]))
    return merged


def plain_submit(script: Path, arguments: Sequence[str]) -> None:
    """spark-submit of a script that knows Delta and nothing of Tidemark."""
    spark_submit(str(script), arguments, settings={**DELTA, **SMALL, **QUIET})


def spark_submit(
    application: str,
    arguments: Sequence[str] = (),
    *,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> None:
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[*]", "--jars", jars(), *options]
    for name, value in (settings or {}).items():
        command += ["--conf", f"{name}={value}"]
    process = subprocess.run(
        [*command, application, *arguments],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise Refused(f"{Path(application).name}: {process.stdout[-3000:]}{process.stderr[-3000:]}")


def jars() -> str:
    """What a driver gets whose lake is a folder."""
    return spark_jars.jars("/lake", os.environ, {}) or ""
