"""`make demo FOLLOW=1`: a run that follows the shop while it is busy, and a line that says how far its tables lag.

The backfill of what was there before runs beside it. The run ends as under a schedule: when the next one is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sandbox.services import processes
from sandbox.services.airflow_api import AirflowApi
from sandbox.steps import StepFailed, Steps

BEGINS_S = 300
ENDS_S = 900
ENDED = ("success", "failed")


def follow(
    api: AirflowApi,
    running: processes.Services,
    steps: Steps,
    dags: tuple[str, str],
    trade: Callable[[], None],
) -> str:
    """Runs of the capture, the first of `dags`, that follow while `trade` works and the backfill, the second, runs.
    Returns the backfill's run."""
    capture, backfill = dags
    with steps.step("capture 1 begins to follow, and finds rows that are older than it"):
        runs = [api.trigger(capture)]
        _await(lambda: {"drain", "merge"} <= _running(api, capture, runs[0]), "drain and merge work", BEGINS_S)
    began = time.monotonic()
    run_id = api.trigger(backfill)
    trading = threading.Thread(target=trade, daemon=True)
    trading.start()
    print("    the shop is busy, and its older rows are backfilled:")
    while trading.is_alive() or api.state(backfill, run_id) not in ENDED:
        print(f"\r    {_line(running.ledger):<100}", end="", flush=True)
        if api.state(capture, runs[-1]) in ENDED:
            runs.append(api.trigger(capture))
        if time.monotonic() - began > ENDS_S:
            raise StepFailed(f"The backfill {run_id} did not end within {ENDS_S} s")
        time.sleep(1)
    print(f"\r    {_line(running.ledger):<100}")
    with steps.step(f"capture {len(runs)} ends, since the next one is due"):
        api.wait(capture, runs[-1], ENDS_S)
    for dag, run in (*((capture, run) for run in runs), (backfill, run_id)):
        failed = [task.task for task in api.tasks(dag, run) if task.state == "failed"]
        if failed:
            raise StepFailed(f"{', '.join(failed)} of run {run} failed; see {running.ui}/dags/{dag}/runs/{run}")
    return run_id


def _running(api: AirflowApi, dag: str, run: str) -> set[str]:
    return {task.task for task in api.tasks(dag, run) if task.state == "running"}


def _await(holds: Callable[[], bool], fact: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise StepFailed(f"Not within {seconds:.0f} s: {fact}. See .tidemark/logs")
        time.sleep(0.5)


def _line(ledger: str) -> str:
    """What a person sees: how old the oldest change is that is not in its table, and how long others took."""
    from tidemark.ledger.connection import open_ledger
    from tidemark.ledger.observations import delays
    from tidemark.ledger.staged import unapplied_changes

    now = datetime.now(UTC)
    with open_ledger(ledger, "shop") as book:
        waiting = unapplied_changes.all_of(book).values()
        present = delays.present(book, now)
    oldest = min((one.oldest_change_at for one in waiting if one.oldest_change_at is not None), default=None)
    lag_s = 0.0 if oldest is None else (now - oldest).total_seconds()
    line = f"lag {lag_s:4.1f} s · {sum(one.changes for one in waiting):,} changes wait"
    if present is None:
        return line
    return f"{line} · half took {present.p50_s:.1f} s or less, 99 of 100 {present.p99_s:.1f} s"
