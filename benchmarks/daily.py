"""Runs of an ordinary day: `python -m benchmarks.daily`.

    run-1, run-1000   a run of the capture with so many changed rows of a large table, from drain to confirm, beside
                      spark-submit of an application that opens a session and closes it
    idle              a run with nothing to do: what its tasks take themselves, without Airflow

The stages are called in this process, as Airflow's tasks call them; the merge is a spark-submit of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from benchmarks import workloads
from benchmarks.pairs import Benchmark, Goal, Meter, Pair, Pairs, Scale, Setting, Taken, main
from benchmarks.pipeline import Pipeline, Refused, one_pipeline, plain_submit
from tidemark.capture.confirm import confirm
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.capture.waiting import changes_waiting
from tidemark.ledger.connection import open_ledger
from tidemark.observe import health
from tidemark.spark_submit.spark_connection import SparkConnection

SESSION = Path(__file__).with_name("plain") / "open_session.py"


@contextmanager
def at_work(setting: Setting) -> Iterator[tuple[Pipeline, psycopg.Connection[tuple[object, ...]]]]:
    """A pipeline whose one table has `size` rows in Delta."""
    with one_pipeline(setting.folder) as pipeline, psycopg.connect(pipeline.source, autocommit=True) as connection:
        workloads.create(connection)
        pipeline.begin()
        workloads.insert(connection, 0, setting.size)
        pipeline.run()
        yield pipeline, connection


def runs(changed: int, setting: Setting) -> Pairs:
    """One run more makes the archive of classes if there is none yet, and is not counted."""
    meter = Meter()
    with at_work(setting) as (pipeline, connection):
        for number in range(-1, setting.rounds):
            workloads.update_all_over(connection, min(changed, setting.size), setting.size, number + 2)
            pair = meter.pair(number, pipeline.run, partial(plain_submit, SESSION, []))
            if number >= 0:
                yield pair


def idle(setting: Setting) -> Pairs:
    with at_work(setting) as (pipeline, _):
        for _ in range(setting.rounds):
            pipeline.runs += 1
            stages = {name: Meter().of(stage) for name, stage in stages_of_an_idle_run(pipeline).items()}
            whole = Taken(sum(t.seconds for t in stages.values()), sum(t.cpu_s for t in stages.values()))
            yield Pair(whole, facts={f"{name}_s": taken.seconds for name, taken in stages.items()})


def stages_of_an_idle_run(pipeline: Pipeline) -> dict[str, Callable[[], object]]:
    """What runs if the sensor skips drain and merge."""

    def look() -> None:
        preflight(pipeline.task("preflight"), spark=SparkConnection("local[*]")).raise_for_errors()

    def wait() -> None:
        waiting = changes_waiting(pipeline.config, source=pipeline.source, ledger=pipeline.ledger)
        if waiting.waiting:
            raise Refused(waiting.reason)

    def judge() -> None:
        with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
            health.judge_by_ledger(book, pipeline.config)

    return {
        "preflight": look,
        "changes_waiting": wait,
        "confirm": lambda: confirm(pipeline.task("confirm")),
        "health": judge,
    }


ROWS: Final[dict[Scale, int]] = {"tiny": 1_000, "small": 200_000, "full": 1_000_000}
BENCHMARKS = (
    Benchmark(
        name="run-1",
        what="a run with 1 changed row of a table, from drain to confirm",
        beside="spark-submit that opens a session",
        goals=(Goal("more_s", 4),),
        unit="rows",
        sizes=ROWS,
        pairs=partial(runs, 1),
    ),
    Benchmark(
        name="run-1000",
        what="a run with 1,000 changed rows of a table, from drain to confirm",
        beside="spark-submit that opens a session",
        goals=(Goal("more_s", 6),),
        unit="rows",
        sizes=ROWS,
        pairs=partial(runs, 1_000),
    ),
    Benchmark(
        name="idle",
        what="a run with nothing to do, all tasks' own time",
        beside="",
        goals=(Goal("seconds", 1),),
        unit="rows",
        sizes=ROWS,
        pairs=idle,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
