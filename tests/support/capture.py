"""A pipeline under test, whole and without Airflow: `Environment` runs the stages of both DAGs in this process.

`run()` is what a DAG run is: preflight → changes_waiting → drain → merge → confirm, the last also after a skip. The
merge uses the session's one Spark; `crash` runs a stage in a process of its own (tests/support/stages.py) that kills
itself at a failpoint. Time does not pass by itself: where a test needs a lease to have ended, `let_leases_end` says
so."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from sandbox.services.postgres import wait_for
from tests.support import local_spark, stages
from tests.support.azure_server import Azure
from tests.support.pipeline import SALT, Place
from tests.support.s3_server import S3Server
from tests.support.stage_process import StageProcess, Started
from tidemark import failpoints
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.verify_report import TableProof, VerifyReport
from tidemark.backfill.verifying import VerifyRequest
from tidemark.capture.merge_planning import PlanScope
from tidemark.ledger import leases

REPOSITORY = Path(__file__).resolve().parents[2]
# Of a stage in a process of its own: the last is where this process has PySpark from.
PATHS = (REPOSITORY, REPOSITORY / "include", Path(pyspark.__file__).parents[1])


def go_on(process: Started) -> int | None:
    """Let a halted process go on to its end; its exit code."""
    os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=120)
    return process.returncode


@dataclass(slots=True)
class RunReport:
    """What one run did; `drained` is None where `changes_waiting` said no, `spark_started` False where no plan was
    needed. `backfilled` maps the tables of a backfill's report, `pending` is why there is none yet; `verified`
    those of a verify's.
    """

    run_id: str
    waiting: bool = True
    drained: Any = None
    spark_started: bool = False
    confirmed: Any = None
    backfilled: dict[str, Any] = field(default_factory=dict)
    verified: dict[str, TableProof] = field(default_factory=dict)
    pending: str = ""


@dataclass
class Environment(Place):
    """One pipeline with a source database, a ledger database and a lake of its own, and whole runs of its DAGs."""

    folder: Path
    spark: Callable[[], SparkSession]
    buckets: S3Server | Azure | None = None  # what has the lake, where that is no folder
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    report: RunReport = field(default_factory=lambda: RunReport("none yet"))
    request: BackfillRequest = field(default_factory=BackfillRequest)
    verify_request: VerifyRequest = field(default_factory=VerifyRequest)
    wait_s: float = 0.0  # of a stage for leases of others
    ends_at: datetime | None = None  # of a run that follows the source

    # --- the stages ----------------------------------------------------------------------------------------------

    def run(self, run_id: str | None = None, *, by_hand: bool = False) -> RunReport:
        """One DAG run, by its schedule or `by_hand`; an error of a stage is raised and ends it, as a failed task would.
        The same `run_id` is a cleared run.
        """
        self.begin_run(run_id)
        self.preflight()
        self.report.waiting = self.changes_waiting(by_hand=by_hand)
        if self.report.waiting:
            self.drain()
            self.merge(by_hand=by_hand)
        self.confirm()
        return self.report

    def begin_run(self, run_id: str | None = None) -> None:
        """What is called from now on are tasks of this run; without an id of a new one."""
        self.report = RunReport(run_id or f"run-{next(self.numbers)}")

    def step(self, name: str) -> RunReport:
        """One stage alone, as another run's task; "run" is all of them."""
        if name == "run":
            return self.run()
        self.begin_run()
        getattr(self, name)()
        return self.report

    def preflight(self) -> None:
        stages.preflight(self.stage_input())

    def changes_waiting(self, *, by_hand: bool = False) -> bool:
        return stages.changes_waiting(self.stage_input(), by_hand=by_hand)

    def drain(self) -> Any:
        self.report.drained = stages.drain(self.stage_input())
        return self.report.drained

    def merge(self, *, by_hand: bool = False) -> None:
        stages.merge(self.stage_input(), self._apply, PlanScope(all_of_them=by_hand))

    def merge_share(self, number: int, tables: Collection[str]) -> None:
        """One of several applications of a run."""
        stages.merge(self.stage_input(), self._apply, PlanScope(tables=frozenset(tables)), f"merge/{number}")

    def _apply(self, uri: str) -> None:
        self.report.spark_started = True
        stages.apply(self.spark(), uri)

    def confirm(self) -> Any:
        self.report.confirmed = stages.confirm(self.stage_input())
        return self.report.confirmed

    # --- a backfill's stages -------------------------------------------------------------------------------------

    def backfill(self, *tables: str, run_id: str | None = None, **request: Any) -> Any:
        """One run of the backfill DAG, as its form asks for it; what it reports. Nothing goes on between its stages."""
        self.begin_backfill(*tables, run_id=run_id, **request)
        self.plan()
        self.read()
        return self.end_backfill()

    def begin_backfill(self, *tables: str, run_id: str | None = None, **request: Any) -> None:
        """What is called from now on are tasks of this run."""
        self.begin_run(run_id or f"backfill-{next(self.numbers)}")
        self.request = BackfillRequest(tables=tables, **request)

    def plan(self) -> Any:
        return stages.plan(self.stage_input())

    def read(self) -> Any:
        return stages.read(self.stage_input())

    def end_backfill(self) -> Any:
        self.drain()
        self.merge()
        self.confirm()
        return self.reported()

    def reported(self) -> Any:
        """What the run's last task says; it raises until all is applied."""
        return stages.report(self.stage_input())

    def verify(
        self, *tables: str, share: Fraction = Fraction(1), run_id: str | None = None, **request: Any
    ) -> VerifyReport:
        """One run of the verify DAG, as its form asks for it; what it found, differences included."""
        self.begin_verify(*tables, share=share, run_id=run_id, **request)
        self.plan_verify()
        self.read()
        return self.end_verify()

    def begin_verify(
        self, *tables: str, share: Fraction = Fraction(1), run_id: str | None = None, **request: Any
    ) -> None:
        """What is called from now on are tasks of this run."""
        self.begin_run(run_id or f"verify-{next(self.numbers)}")
        self.verify_request = VerifyRequest(tables=tables, share=share, **request)

    def plan_verify(self) -> None:
        stages.plan_verify(self.stage_input())

    def end_verify(self) -> VerifyReport:
        self.drain()
        self.merge()
        self.confirm()
        return stages.verified(self.stage_input())

    def stage_input(self) -> stages.StageInput:
        return stages.StageInput(
            self.config,
            self.source,
            self.ledger,
            self.report.run_id,
            SALT,
            self.request,
            self.verify_request,
            self.wait_s,
            self.ends_at,
        )

    def maintain(self) -> Any:
        """One run of the maintenance DAG, when all that is applied now has become old: what it retired, and figures."""
        self.begin_run()
        return stages.maintain(self.stage_input(), self.spark)

    # --- faults --------------------------------------------------------------------------------------------------

    def crash(self, at: str) -> None:
        """Run the stage of failpoint `at` in a process of its own and see it killed there. The run's id stays, so that
        the next call of the stage is the task's retry.
        """
        stage = at.partition(".")[0]
        process = self.start(stage, at)
        output, _ = process.communicate(timeout=120)
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(
                f"{stage} was not killed at {at} but ended with {process.returncode}:\n{output[-3000:]}"
            )

    def start(self, stage: str, failpoint: str = "", own_jvm: bool = False) -> Started:
        """Start one stage in a process of its own, with a failpoint ("name" kills it there, "name:stop" halts it
        there).
        """
        input_file = self.folder / f"stage-{next(self.numbers)}.pickle"
        input_file.write_bytes(pickle.dumps(self.stage_input()))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
        environment.pop(failpoints.VARIABLE, None)
        if not own_jvm and stage in ("merge", "maintain"):
            environment |= local_spark.gateway_of(self.spark())
        if failpoint:
            environment[failpoints.VARIABLE] = failpoint
        if not own_jvm:
            return StageProcess(stage, input_file, environment)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.stages", stage, str(input_file)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def halt(self, stage: str, failpoint: str, own_jvm: bool = False) -> Started:
        """The stage in a process of its own, halted at the failpoint."""
        process = self.start(stage, f"{failpoint}:stop", own_jvm)

        def halted() -> bool:
            if process.poll() is not None:
                output, _ = process.communicate()
                raise AssertionError(f"{stage} ended with {process.returncode} before {failpoint}:\n{output[-3000:]}")
            return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        wait_for(f"{stage} halted at {failpoint}", halted, 120)
        return process

    def let_leases_end(self) -> None:
        """As if more time had passed than any lease lasts."""
        with self.ledger_connection() as ledger:
            ledger.execute("UPDATE tidemark.leases SET expires_at = clock_timestamp() - interval '1 second'")

    @contextmanager
    def holding_lease(self, name: str) -> Iterator[None]:
        """As if another task, of another run, held the lease."""
        with leases.hold(self.ledger, self.config.pipeline, name, "somebody else"):
            yield
