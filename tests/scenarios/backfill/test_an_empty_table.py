"""A table without a row, and without a change ever since: its chunk has no file, and is merged like any other. No Spark
here; what becomes of it in the lake is in tests/scenarios/backfill/in_flight_when_its_table_joined.sql."""

from __future__ import annotations

from tests.support.pipeline import Pipeline
from tidemark.capture.merge_planning import leased_plan


def test_a_plan_knows_the_shape_of_a_table_of_which_no_file_was_written(captured: Pipeline) -> None:
    captured.execute("CREATE TABLE t (n int PRIMARY KEY, what text)")
    captured.capture()
    captured.plan(tables=["public.t"])
    captured.read()
    captured.drain()
    with leased_plan(captured.task("merge")) as plan:
        assert plan is not None
        (table,) = plan.tables
        (claim,) = (claim for batch in table.batches for claim in batch.claims)
        assert (claim.rows, claim.files) == (0, ())
        assert [column.name for column in table.schemas[-1].columns] == ["n", "what"]
