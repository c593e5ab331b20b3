"""An hour of a busy source, followed by one run after the other: `python -m benchmarks.hours`.

A real Airflow captures 20 tables with 200 changes a second. A run follows the source until the next quarter of an hour,
when the next one takes over; maintenance runs beside them every twenty minutes. The figures are of all commits of that
time, those while one run hands over to the next among them. In the end every run has to have succeeded, every table has
to equal its source, and `history` has to hold each change once.

The facts say besides what the tasks and drivers had of memory at the end of each quarter.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from functools import partial
from typing import Final

import psycopg

from benchmarks.killed import Busy, check
from benchmarks.latency import (
    FEW,
    Processes,
    Services,
    applied,
    at_work,
    create_many,
    logs_of,
    write_first_rows,
)
from benchmarks.pairs import Benchmark, Goal, Pair, Pairs, Setting, Taken, main
from benchmarks.pipeline import Refused

FOLLOWING: Final = 'schedule: "*/15 * * * *"\nfollow: {every: 2s}'
MAINTAINED: Final = '"*/20 * * * *"'
EVERY: Final = 15  # minutes a run, and a look at memory


def pairs(setting: Setting) -> Pairs:
    """One pair: the median of all commits of `size` minutes."""
    lake = setting.folder / "lake"
    logs = logs_of(lake, FEW)
    create = partial(create_many, tables=FEW.tables)
    with at_work(
        setting.folder, lake, FOLLOWING, starts_it=True, create=create, maintenance=MAINTAINED, apart=True
    ) as (source, services):
        with psycopg.connect(source, autocommit=True) as connection:
            write_first_rows(connection, logs, FEW)
        facts: dict[str, float] = {}
        with Busy(source) as busy:
            for minute in range(setting.size):
                time.sleep(60)
                if (minute + 1) % EVERY == 0 or minute + 1 == setting.size:
                    memory = Processes([process.pid for process in services.processes]).memory_mb()
                    facts |= {f"{kind}_mb_{minute + 1}": mb for kind, mb in memory.items()}
                    print(f"    minute {minute + 1}: {runs(services)}, {memory}", flush=True)
        when, at = applied(logs, busy.committed)
        took = [read - committed for committed, read in zip(when, at, strict=True)]
        ended = runs(services)
        check(source, lake)
    if set(ended) - {"success", "running"} or ended.get("success", 0) < setting.size // EVERY - 1:
        raise Refused(f"not all runs succeeded: {ended}")
    facts |= spread("", took) | {"commits": len(took), "runs": ended.get("success", 0)}
    quarters = defaultdict(list)
    for committed, waited in zip(when, took, strict=True):
        quarters[int((committed - when[0]) / 60 // EVERY) + 1].append(waited)
    for quarter, of_it in quarters.items():
        facts |= spread(f"_{quarter}", of_it)
    yield Pair(Taken(statistics.median(took)), facts=facts)


def spread(of: str, took: list[float]) -> dict[str, float]:
    took = sorted(took)
    return {
        f"median{of}_s": statistics.median(took),
        f"p99{of}_s": took[len(took) * 99 // 100],
        f"most{of}_s": took[-1],
    }


def runs(services: Services) -> dict[str, int]:
    """State -> how many runs of capture and maintenance."""
    with psycopg.connect(services.server.conninfo("airflow")) as connection:
        return dict(connection.execute("SELECT state, count(*) FROM dag_run GROUP BY state").fetchall())


BENCHMARKS = (
    Benchmark(
        name="hours",
        what="200 changes a second in 20 tables, every: 2s, a run every quarter of an hour and maintenance, median",
        beside="",
        goals=(Goal("seconds", 4),),
        unit="minutes",
        sizes={"tiny": 1, "small": 15, "full": 60},
        pairs=pairs,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
