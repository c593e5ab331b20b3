"""Merges of a table that has tens of thousands of commits behind it: `python -m benchmarks.commits`.

One warm driver merges 20 changes after 20 changes into a table of 20,000 rows, as a run that follows its source does:
each merge is a plan with its file and its result, one commit of history and one of current, and with the checkpoints
that the driver writes. Maintenance does what its DAG does, after every so many merges. The pair is a merge behind so
many commits beside one behind fifty, each the mean of a hundred merges, so that checkpoints are in it.

At each mark the facts say besides, for both tables together:

    merge_cpu_s    CPU seconds of a merge
    look_s         a look at the newest version by the driver, which lists the log
    clean_up_s     what Delta's clean-up of the log takes while nothing has expired
    open_s         the table opened by Spark that has forgotten its log, and a row read
    log_mb         bytes of `_delta_log`, and `log_files` of them
    history_files  files of history, which become few with each maintenance

In the end all commits but the last thousand are made older than the retention, and the clean-up removes them.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.age import THERE, maintained
from benchmarks.pairs import Benchmark, Goal, Meter, Pair, Pairs, Setting, Taken, main
from benchmarks.pipeline import Refused
from benchmarks.source_tables import PIPELINE, SourceTable, plan_of
from benchmarks.warm_spark import jvm_pid, warm_session
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.target.delta import delta_tables, internals
from tidemark.target.delta.jvm import java_class
from tidemark.target.delta.session import table_session
from tidemark.target.plans.plan_execution import apply_and_write_result

CHANGES: Final = 20
MARKS: Final = (50, 1_000, 10_000, 50_000)  # and the size, where it is none of them
BESIDE: Final = 50
MERGES: Final = 100  # behind each mark: one checkpoint of each table at least
WARM: Final = 200
MAINTAINED: Final = 4_000  # so that there is none shortly before a mark
KEPT: Final = 1_000  # commits that have not expired in the end
EXPIRED_DAYS: Final = 9
LOOKS: Final = 20


@dataclass
class LongLog:
    """A table, the driver that merges it, and how many merges are behind it."""

    spark: SparkSession
    table: SourceTable
    merges: int = 0

    def __post_init__(self) -> None:
        self.meter = Meter(jvm_pid(self.spark))
        self._apply(plan_of(f"first{self.table.number}", self.lake, [self.table.next_batch(THERE)]))

    @property
    def lake(self) -> Path:
        return self.table.lake

    @property
    def folders(self) -> list[Path]:
        name = self.table.schema.table
        return [self.lake / layout_of(PIPELINE, name) for layout_of in (layout.history_table, layout.current_table)]

    @property
    def logs(self) -> list[Path]:
        return [folder / "_delta_log" for folder in self.folders]

    def merge(self) -> Taken:
        """The next one; what it read, and its plan, are removed behind it."""
        planned = self.table.next_changes(CHANGES)
        plan = plan_of(f"merge{self.table.number}-{self.merges}", self.lake, [planned])
        taken = self.meter.of(lambda: self._apply(plan))
        self.merges += 1
        shutil.rmtree((self.lake / layout.plan_file(PIPELINE, plan.plan)).parent)
        for file in (file for batch in planned.batches for file in batch.files):
            shutil.rmtree((self.lake / file.path).parent)
        if self.merges % MAINTAINED == 0:
            maintained(self.spark, self.lake, str(self.table.schema.table), f"{self.table.number}-{self.merges}")
        return taken

    def _apply(self, plan: MergePlan) -> None:
        uri = f"{self.lake}/{layout.plan_file(PIPELINE, plan.plan)}"
        result = apply_and_write_result(self.spark, uri)
        if errors := [table.error for table in result.tables if table.error is not None]:
            raise Refused(str(errors[0]))

    def merges_until(self, number: int) -> None:
        began = time.monotonic()
        while self.merges < number:
            self.merge()
            if self.merges % 1_000 == 0:
                print(f"    {self.merges:,} merges, {time.monotonic() - began:.0f} s", flush=True)

    def mean_merge(self) -> Taken:
        taken = [self.merge() for _ in range(MERGES)]
        return Taken(statistics.mean(t.seconds for t in taken), statistics.mean(t.cpu_s for t in taken))

    def facts(self, mark: int, merge: Taken) -> dict[str, float]:
        """Of the table at a mark."""
        session = table_session(self.spark, pool="looks", lake=str(self.lake))
        look = self._both(lambda path: [delta_tables.pin(session, path) for _ in range(LOOKS)])
        clean_up = self._both(lambda path: internals.committed(session, path).clean_up_log())
        history, current = (delta_tables.pin(session, str(folder)) for folder in self.folders)
        java_class(self.spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
        opened = self._both(lambda path: self.spark.read.format("delta").load(path).limit(1).collect())
        files = [file for log in self.logs for file in os.scandir(log)]
        facts = {
            "merge_s": merge.seconds,
            "merge_cpu_s": merge.cpu_s,
            "look_s": look.seconds / LOOKS,
            "look_cpu_s": look.cpu_s / LOOKS,
            "clean_up_s": clean_up.seconds,
            "clean_up_cpu_s": clean_up.cpu_s,
            "open_s": opened.seconds,
            "open_cpu_s": opened.cpu_s,
            "log_mb": sum(file.stat().st_size for file in files) / 2**20,
            "log_files": len(files),
            "history_files": history.files,
            "current_files": current.files,
        }
        return {f"{name}_{mark}": value for name, value in facts.items()}

    def _both(self, work: Callable[[str], object]) -> Taken:
        return self.meter.of(lambda: [work(str(folder)) for folder in self.folders])

    def let_commits_expire(self) -> None:
        """As if all but the last ones were from before the retention."""
        at = time.time() - EXPIRED_DAYS * 86_400
        for log in self.logs:
            for file in os.scandir(log):
                version = file.name.partition(".")[0]
                if version.isdigit() and int(version) < self.merges - KEPT:
                    os.utime(file.path, (at, at))

    def cleaned_up(self) -> dict[str, float]:
        """The clean-up that has something to remove, and what is left of the log."""
        session = table_session(self.spark, pool="looks", lake=str(self.lake))
        self.let_commits_expire()
        taken = self._both(lambda path: internals.committed(session, path).clean_up_log())
        left = [file.stat().st_size for log in self.logs for file in os.scandir(log)]
        return {"removing_s": taken.seconds, "removing_cpu_s": taken.cpu_s, "left_mb": sum(left) / 2**20}


def pairs(setting: Setting) -> Pairs:
    """Each round is a table of its own."""
    for number in range(setting.rounds):
        with warm_session() as spark:
            warming = LongLog(spark, SourceTable(setting.folder / f"warming{number}", 0, random.Random(0)))
            warming.merges_until(min(WARM, setting.size))
            warming.facts(0, Taken(0.0))
            table = SourceTable(setting.folder / str(number), number + 1, random.Random(number))
            yield aged(LongLog(spark, table), setting.size)


def aged(table: LongLog, size: int) -> Pair:
    facts: dict[str, float] = {}
    taken: dict[int, Taken] = {}
    for mark in marks(size):
        table.merges_until(mark)
        taken[mark] = table.mean_merge()
        facts |= table.facts(mark, taken[mark])
        print(f"    behind {mark:,} commits: {told(facts, mark)}", flush=True)
    facts |= table.cleaned_up()
    return Pair(taken[size], taken[min(BESIDE, size)], facts)


def marks(size: int) -> Iterator[int]:
    yield from (mark for mark in MARKS if mark < size)
    yield size


def told(facts: dict[str, float], mark: int) -> str:
    of_mark = {name.removesuffix(f"_{mark}"): value for name, value in facts.items() if name.endswith(f"_{mark}")}
    return ", ".join(f"{name} {value:,.4g}" for name, value in of_mark.items())


BENCHMARKS = (
    Benchmark(
        name="commits",
        what="a merge of 20 changes in a warm driver, behind so many commits of the table",
        beside="the same behind fifty",
        goals=(Goal("ratio", 1.2),),
        unit="commits",
        sizes={"tiny": 2, "small": 1_000, "full": 10_000},
        pairs=pairs,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
