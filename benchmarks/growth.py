"""What one run costs a pipeline that is years old: `python -m benchmarks.growth`.

Two pipelines over as many tables, with one change in each of them per run. Every stage but Spark is the real one; the
merge's result is written as its driver would write it. The ledger of one holds nothing but these runs, that of the
other so many batches besides, each of 5 tables, with a plan for every two of them.

Batches are put into the ledger by growth.sql, all of them applied, below the position where the real ones begin; in
staging each has its folder. The pair is what a run of each waits for statements in the ledger and for listings of
folders; medians of all stages are printed.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.pairs import Benchmark, Curve, Goal, Pair, Pairs, Setting, Taken, in_turns, main
from benchmarks.pipeline import Refused, new_database
from sandbox.services.postgres import running
from tidemark.capture import drain as drain_module
from tidemark.capture.confirm import confirm
from tidemark.capture.continuity import generation
from tidemark.capture.drain import drain
from tidemark.capture.merge_planning import ingest, leased_plan
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.capture.waiting import changes_waiting
from tidemark.config import PipelineConfig, TableRule
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger import migrations
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import batches, generations
from tidemark.lsn import Lsn
from tidemark.observe.status import read_status
from tidemark.run import Run
from tidemark.storage.store import Store

PIPELINE = "growth"
# Stages of a run: of those that are measured, waiting in vain and the status are no part of it.
RUN = ("preflight", "waiting", "drain", "plan", "ingest", "confirm")
# A filled batch covers so many bytes of WAL, touches so many tables, and one plan in so many applied it.
BATCH_BYTES = 64
TOUCHED = 5
BATCHES_A_PLAN = 2
# Parts of the drain, each a name in its module.
PARTS = {
    "  drain: recovery": (generation, "settle"),
    "  drain: abandoned folders": (drain_module, "_remove_abandoned"),
    "  drain: beginning": (drain_module, "Draining"),
    "  drain: register": (batches, "register"),
}


@dataclass
class Cost:
    """Seconds of one stage in one run, and what of them the ledger's statements and listings of folders took."""

    seconds: float = 0.0
    ledger_s: float = 0.0
    statements: float = 0
    listing_s: float = 0.0


FIGURES = tuple(figure.name for figure in fields(Cost))


@dataclass
class StageMeter:
    """Times stages by name. Statements are counted where they are sent, by the database's name; those of the thread
    that renews a lease are not."""

    costs: dict[str, Cost] = field(default_factory=dict)
    _open: list[Cost] = field(default_factory=list)
    _thread: threading.Thread = field(default_factory=threading.current_thread)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        cost = self.costs.setdefault(name, Cost())
        self._open.append(cost)
        began = time.perf_counter()
        try:
            yield
        finally:
            cost.seconds += time.perf_counter() - began
            self._open.pop()

    def statement(self, seconds: float) -> None:
        if threading.current_thread() is self._thread:
            for cost in self._open:
                cost.ledger_s += seconds
                cost.statements += 1

    def listing(self, seconds: float) -> None:
        for cost in self._open:
            cost.listing_s += seconds


@contextmanager
def watched(meter: StageMeter) -> Iterator[None]:
    """Have the meter told of statements, listings and the drain's parts while the block runs."""
    put_back: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, timed: Callable[[Any], Callable[..., Any]]) -> None:
        original = getattr(owner, name)
        put_back.append((owner, name, original))
        setattr(owner, name, timed(original))

    def statements(execute: Any) -> Callable[..., Any]:
        @wraps(execute)
        def run(cursor: psycopg.Cursor[Any], *values: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return execute(cursor, *values, **options)
            finally:
                if "ledger" in cursor.connection.info.dbname:
                    meter.statement(time.perf_counter() - began)

        return run

    def listings(listed: Any) -> Callable[..., Any]:
        @wraps(listed)
        def run(*values: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return listed(*values, **options)
            finally:
                meter.listing(time.perf_counter() - began)

        return run

    def part(name: str) -> Callable[[Any], Callable[..., Any]]:
        def timed(called: Any) -> Callable[..., Any]:
            @wraps(called, updated=())
            def run(*values: Any, **options: Any) -> Any:
                with meter.stage(name):
                    return called(*values, **options)

            return run

        return timed

    wrap(psycopg.Cursor, "execute", statements)
    wrap(Store, "list", listings)
    for name, (owner, attribute) in PARTS.items():
        wrap(owner, attribute, part(name))
    try:
        yield
    finally:
        for owner, attribute, original in reversed(put_back):
            setattr(owner, attribute, original)


class AgeingPipeline:
    """One pipeline over a source and a ledger of its own, both empty, and the stages of its runs."""

    def __init__(self, source: str, ledger: str, lake: Path, tables: int) -> None:
        self.tables = tables
        self.lake = lake
        self.source, self.ledger = source, ledger
        with psycopg.connect(self.source, autocommit=True) as connection:
            for number in range(tables):
                columns = "id bigint PRIMARY KEY, name text, price numeric(10,2), created timestamptz DEFAULT now()"
                connection.execute(f"CREATE TABLE t{number:04} ({columns})".encode())
        migrations.migrate(self.ledger)
        self.config = PipelineConfig(
            pipeline=PIPELINE,
            source_connection="source",
            slot=f"growth_{lake.name}",
            publication="growth",
            manage_publication=True,
            tables=(TableRule("public.*"),),
            lake=str(self.lake),
            ledger_connection="ledger",
        )
        self.runs = 0
        preflight(self.task("preflight")).raise_for_errors()

    def task(self, name: str) -> Run:
        run_id = f"capture/{self.runs}"
        return Run(self.config, self.source, self.ledger, run_id, f"{run_id}/{name}")

    def change(self) -> None:
        with psycopg.connect(self.source) as connection:
            for number in range(self.tables):
                connection.execute(f"INSERT INTO t{number:04} VALUES (%s, 'a name', 1.5)".encode(), (self.runs,))

    def run(self, meter: StageMeter) -> None:
        """One run of the capture DAG, and a look at its status."""
        self.runs += 1
        self.change()
        ends: dict[str, Any] = {"source": self.source, "ledger": self.ledger}
        with watched(meter):
            with meter.stage("preflight"):
                preflight(self.task("preflight")).raise_for_errors()
            with meter.stage("waiting"):
                waiting = changes_waiting(self.config, **ends)
            assert waiting.waiting, waiting.reason
            with meter.stage("drain"):
                drained = drain(self.task("drain"))
            assert drained.reached_target
            assert PARTS.keys() <= meter.costs.keys()
            with meter.stage("plan"):
                ingest(self.task("merge"))
                with leased_plan(self.task("merge")) as plan:
                    pass
            assert plan is not None
            assert len(plan.tables) == self.tables
            self.merged(plan)
            with meter.stage("ingest"):
                ingested = ingest(self.task("merge"))
            assert sum(table.advanced for table in ingested.tables) == self.tables
            with meter.stage("confirm"):
                confirmed = confirm(self.task("confirm"))
            assert confirmed.after == confirmed.staged == drained.staged_lsn
            with meter.stage("waiting, idle"):
                waiting = changes_waiting(self.config, **ends)
            assert not waiting.waiting, waiting.reason
            with meter.stage("status"):
                status = read_status(self.config, **ends)
            assert len(status.tables) == self.tables, status.unseen

    def merged(self, plan: MergePlan) -> None:
        """What the Spark application would have written."""
        tables = tuple(TableResult(t.table, t.end_lsn, t.end_lsn, rows={"history": 1}) for t in plan.tables)
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, tables)
        Store(self.config.lake).write_atomic(layout.result_file(PIPELINE, plan.plan), result.to_json().encode())

    def grow(self, number: int) -> None:
        """Put `number` batches below the generation's first one, applied to all tables, with their plans and
        folders."""
        with open_ledger(self.ledger, PIPELINE) as book:
            low = generations.required(book).start_lsn - number * BATCH_BYTES
            if low < 1:
                raise Refused(f"the WAL began too early for {number} batches")
            fill(book.connection, PIPELINE, low, number, self.tables)
        home = self.lake / layout.generation_folder(PIPELINE, 1)
        for place in range(number):
            (home / f"{Lsn(low + place * BATCH_BYTES).hex16}-grown-{place}").mkdir()

    def analyze(self) -> None:
        with psycopg.connect(self.ledger, autocommit=True) as book:
            book.execute("VACUUM ANALYZE")


def fill(book: psycopg.Connection[Any], pipeline: str, low: int, number: int, tables: int) -> None:
    """Put so many batches into the ledger, the first of which starts at `low`."""
    book.execute("SET session_replication_role = replica")  # no look-up of a foreign key for each row
    values = {
        "pipeline": pipeline,
        "low": low,
        "size": BATCH_BYTES,
        "last": number - 1,
        "tables": tables,
        "touched": min(TOUCHED, tables),
        "share": BATCHES_A_PLAN,
    }
    for statement in Path(__file__).with_suffix(".sql").read_text().split(";\n\n"):
        book.execute(statement.encode(), values)
    book.execute("RESET session_replication_role")


def medians(runs: Sequence[dict[str, Cost]]) -> dict[str, Cost]:
    """By stage."""
    return {
        stage: Cost(*(statistics.median([getattr(run[stage], figure) for run in runs]) for figure in FIGURES))
        for stage in runs[0]
    }


def total(costs: dict[str, Cost], figure: str) -> float:
    """Over the stages of a run; the drain's parts are in it already."""
    return sum(float(getattr(cost, figure)) for stage, cost in costs.items() if stage in RUN)


def show(cases: dict[str, dict[str, Cost]]) -> None:
    """Every stage of both, medians of all rounds."""
    print("  seconds (of them in the ledger, statements; listing)")
    print(f"  {'':<26}" + "".join(f"{case:>34}" for case in cases) + "   grown/fresh")
    for stage in [*next(iter(cases.values())), "a run"]:
        line = f"  {stage:<26}"
        shown = []
        for costs in cases.values():
            cost = costs.get(stage) or Cost(*(total(costs, figure) for figure in FIGURES))
            shown.append(cost)
            line += f"{cost.seconds:10.3f} ({cost.ledger_s:6.3f}, {cost.statements:6,.0f}; {cost.listing_s:5.3f})"
        print(f"{line}   {shown[-1].seconds / shown[0].seconds:5.2f}x", flush=True)


def of_the_ledger(costs: dict[str, Cost]) -> Taken:
    """What a run waits for ledger and listings; whose CPU that is nobody can tell from here."""
    return Taken(total(costs, "ledger_s") + total(costs, "listing_s"))


def pairs(tables: int, setting: Setting) -> Pairs:
    """Two pipelines of so many tables, one of which is years old; a run of each in turns."""
    settings = {"max_wal_size": "8GB", "shared_buffers": "512MB", "fsync": "off", "autovacuum": "off"}
    with running(setting.folder / "postgres", 18, **settings) as server:
        cases = {}
        for case in ("fresh", "grown"):
            source, ledger = (new_database(server, f"{name}_{case}") for name in ("source", "ledger"))
            cases[case] = AgeingPipeline(source, ledger, setting.folder / case, tables)
            cases[case].run(StageMeter())
        cases["grown"].grow(setting.size)
        for pipeline in cases.values():
            pipeline.analyze()
            pipeline.run(StageMeter())
        seen: dict[str, list[dict[str, Cost]]] = {case: [] for case in cases}

        def one(case: str) -> Taken:
            meter = StageMeter()
            cases[case].run(meter)
            seen[case].append(meter.costs)
            return of_the_ledger(meter.costs)

        for number in range(setting.rounds):
            pair = in_turns(number, partial(one, "grown"), partial(one, "fresh"))
            if number == setting.rounds - 1:
                show({case: medians(costs) for case, costs in seen.items()})
            yield Pair(pair.ours, pair.beside, {"run_s": total(seen["grown"][-1], "seconds")})


def ageing(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Pair]]:
    for size in sizes:
        for pair in pairs(20, Setting(size, 1, folder / str(size))):
            yield size, pair


BENCHMARKS = tuple(
    Benchmark(
        name=f"growth-{tables}",
        what=f"a run's work in ledger and staging of {tables} tables, after so many batches",
        beside="the same with an empty ledger",
        goals=(Goal("ratio", 1.2), Goal("seconds", 0.5)),
        unit="batches",
        sizes={"tiny": 200, "small": 20_000, "full": 200_000},
        pairs=partial(pairs, tables),
    )
    for tables in (20, 500)
)
CURVES = (
    Curve(
        name="batches",
        title="A run's work in ledger and staging, 20 tables",
        x="batches before it",
        y="seconds",
        ours="after so many batches",
        beside="empty ledger",
        sizes={"tiny": (100,), "small": (2_000, 20_000), "full": (2_000, 20_000, 200_000)},
        points=ageing,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
