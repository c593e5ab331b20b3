"""Defines the tasks of a backfill that capture does not have; each calls one function of the library.

    plan ─► read_chunks (one per reader) ─► drain ─► merge ─► confirm ─► report

What to read, how far it was read and what became of it stand in the ledger: a task that is cleared, or killed and
tried again, goes on where the ledger says. All that `plan` hands on is the number of readers.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, Final

from airflow.sdk import Context

from tidemark.config import PipelineConfig
from tidemark.run import Run
from tidemark.staging.pandas_import import block_pandas_import
from tidemark.wording import counted
from tidemark_airflow.failures import guarded
from tidemark_airflow.forms import backfill_form
from tidemark_airflow.operators.capture_operators import run_of
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.run_figures import timed

# Airflow follows its SIGTERM with a SIGKILL; a reader that ends asks the ledger for no longer than this.
TOLD_WITHIN_S: Final = 3.0
# How long a report waits for the merges of other runs, a capture's next one among them, and how often it looks.
REPORT_WAIT_S: Final = 900.0
REPORT_POLL_S: Final = 10.0


class PlanBackfillOperator(PipelineOperator):
    """Opens, or goes on with, the backfills that the form asks for. Returns the readers' numbers, none for none."""

    @guarded
    @timed
    def execute(self, context: Context) -> list[int]:
        from tidemark.backfill.planning import plan

        answers = context["params"]
        backfills = plan(
            run_of(self.config, context),
            request=backfill_form.request(self.config, answers, context["dag_run"].conf or {}),
        )
        self.log.info(
            "To be read: %s",
            ", ".join(one.table for one in backfills) or "nothing; no table that can be merged needs a backfill",
        )
        return backfill_form.readers(answers) if backfills else []


class ReadChunksOperator(PipelineOperator):
    """Reads range after range of the run's backfills until none is free."""

    def __init__(self, *, config: PipelineConfig, reader: int, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.reader = reader

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        block_pandas_import()
        from tidemark.backfill.exported_snapshot import read_exported
        from tidemark.backfill.range_reading import read_chunks

        answers = context["params"]
        run = run_of(self.config, context, salted=True)
        results = []
        try:
            if answers.get("mode") == backfill_form.EXPORTED:  # a verify's form has no mode
                results.append(read_exported(run))
            # Beside an exported snapshot too: the keys of holes are read in chunks whatever the form says.
            results.append(read_chunks(run))
        except SystemExit:
            self._say_how_far(run)
            raise
        chunks, rows = sum(one.chunks for one in results), sum(one.rows for one in results)
        self.log.info("Reader %d read %s with %s", self.reader, counted(chunks, "chunk"), counted(rows, "row"))
        return {"chunks": chunks, "rows": rows}

    def _say_how_far(self, run: Run) -> None:
        """What is filled, since no later task of a run that was marked failed says so."""
        from tidemark.backfill.backfill_report import progress_lines

        progress = "the ledger did not say what is filled"

        def ask() -> None:
            nonlocal progress
            with suppress(Exception):
                progress = "; ".join(progress_lines(run)) or "no backfill of the run is open"

        # Nobody waits for this thread where the ledger does not answer.
        asking = Thread(target=ask, name="progress", daemon=True)
        asking.start()
        asking.join(TOLD_WITHIN_S)
        self.log.info("The reader ends; clearing read_chunks goes on there. %s", progress)

    def on_kill(self) -> None:
        """Leave by an exception, so that the range's lease is given back, the query cancelled and processes ended.

        Airflow calls this in its handler of SIGTERM and would otherwise go on until SIGKILL; the next reader of the
        range would then wait for the lease to expire.
        """
        raise SystemExit("The reader was told to end; what it has read is kept, the range goes on at its cursor")


class ReportBackfillOperator(PipelineOperator):
    """Says what the run's backfills did, once all of it is applied. A merge that holds a table makes it wait, which is
    no failure; after `REPORT_WAIT_S` it is one, and is retried."""

    @guarded
    @timed
    def execute(self, context: Context) -> str:
        summary = str(self._awaited(run_of(self.config, context)))
        self.log.info("%s", summary)
        return summary

    def _awaited(self, run: Run) -> object:
        """Raises BackfillNotApplied after `REPORT_WAIT_S`."""
        from tidemark.errors import BackfillNotApplied
        from tidemark.wait_log import Wait

        wait = Wait(REPORT_WAIT_S, every_s=REPORT_POLL_S)
        while True:
            try:
                report = self.report(run)
            except BackfillNotApplied as waits:
                awaited = f"a merge of what was read: {waits.facts['pending']}"
                if not wait.pause(partial(str, awaited)):
                    raise
            else:
                wait.log_end()
                return report

    def report(self, run: Run) -> object:
        from tidemark.backfill.backfill_report import report

        return report(run)
