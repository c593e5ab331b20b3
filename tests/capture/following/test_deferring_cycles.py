"""With `merge: {every: …}` the tables of a run that follows wait, in the middle of the run, and are merged in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tests.support.pipeline import Pipeline
from tidemark.capture.following.merge_cycles import AGAIN_S, MergeCycles
from tidemark.capture.following.window import FollowWindow
from tidemark.config import Merge
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult, TableResult


@dataclass
class Application:
    """Says of each plan at once that it is applied. `staging` is done while the first one is."""

    pipeline: Pipeline
    staging: Callable[[], None]
    plans: list[dict[str, int]] = field(default_factory=list)

    def order(self, plan: str) -> None:
        store = self.pipeline.store
        read = MergePlan.from_json(store.read(layout.plan_file(self.pipeline.config.pipeline, plan)))
        if not self.plans:
            self.staging()
        self.plans.append({table.table.removeprefix("public."): len(table.batches) for table in read.tables})
        tables = tuple(TableResult(table.table, table.end_lsn, table.end_lsn) for table in read.tables)
        result = PlanResult(plan=plan, pipeline=read.pipeline, generation=read.generation, tables=tables)
        store.write_new(layout.result_file(read.pipeline, plan), result.to_json().encode())

    def is_ready(self) -> bool:
        return True

    def has_ended(self) -> bool:
        return False


def test_tables_wait_in_the_middle_of_a_run_until_they_are_due(pipeline: Pipeline) -> None:
    pipeline.config = replace(pipeline.config, merge=Merge(every="1d", rows=25))
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE lines (id int PRIMARY KEY)")
    pipeline.begin()

    def stage(*statements: str) -> None:
        pipeline.execute(*statements)
        pipeline.drain()

    stage("INSERT INTO orders VALUES (1)", "INSERT INTO lines VALUES (1)")
    application = Application(pipeline, lambda: stage("INSERT INTO orders VALUES (2)"))
    later = timedelta(0)
    looks = 0

    def steps() -> Iterator[None]:
        """Each begins when nothing was merged for a while."""
        nonlocal later
        assert application.plans == [{"orders": 1, "lines": 1}], "the first merge is never late, and others wait"
        stage("INSERT INTO orders VALUES (3)")
        yield
        assert len(application.plans) == 1
        stage("INSERT INTO lines SELECT generate_series(100, 130)")
        yield
        assert application.plans[1:] == [{"lines": 1}], "so many rows do not wait"
        later = timedelta(days=1)
        yield
        assert application.plans[2:] == [{"orders": 2}], "all that waited, in one merge"

    step = steps()

    def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks % 20 == 0:
            ended.extend([True] if next(step, "over") == "over" else [])

    ended: list[bool] = []
    cycles = MergeCycles(
        pipeline.task("merge", "following", now=lambda: datetime.now(UTC) + later, clock=lambda: AGAIN_S * looks),
        FollowWindow(datetime.now(UTC), datetime.now(UTC) + timedelta(days=2), 2),
        "the drain",
        lambda: False,
        between=lambda: bool(ended),
        pause=pause,
    )
    assert len(list(cycles.results(application))) == 3
