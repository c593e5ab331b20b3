"""Something that was staged of a table is lost for good: the table goes on behind it, and both Delta tables stay."""

from __future__ import annotations

import json

from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.errors import StagedFileGone
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import backfill_marks, merge_states
from tidemark.ledger.staged import applied_positions
from tidemark.observe import table_commands
from tidemark.observe.park_endings import ending_commands

GONE = ErrorRecord("StagedFileGone", "BACKFILL", str(StagedFileGone(table="public.item")))


def parked(pipeline: Pipeline, table: str) -> None:
    with pipeline.ledger_connection() as book:
        assert merge_states.failed(book, table, GONE, park_after=1)


def test_a_table_goes_on_behind_what_was_lost_of_it(captured: Pipeline) -> None:
    pipeline = captured
    pipeline.execute("CREATE TABLE public.item (id int PRIMARY KEY)", "CREATE TABLE public.other (id int PRIMARY KEY)")
    pipeline.capture()
    pipeline.execute("INSERT INTO public.item VALUES (1)", "INSERT INTO public.other VALUES (1)")
    pipeline.drain()
    assert "is not parked" in table_commands.pass_over(pipeline.config, "public.item", ledger=pipeline.ledger)[0]
    parked(pipeline, "public.item")
    sentence, done = table_commands.pass_over(pipeline.config, "public.item", ledger=pipeline.ledger)
    assert done
    assert "history lacks the changes" in sentence
    row = pipeline.table_row("public.item")
    assert (row.life.merge, row.life.needs_backfill, row.backfill_kind) == ("merging", True, backfill_marks.GAP)
    assert row.join_horizon is None, "the backfill's snapshots need not see what was passed over"
    with pipeline.ledger_connection() as book:
        assert list(applied_positions.held_back_by(book)) == ["public.other"]
    passed = pipeline.staged_lsn()
    pipeline.execute("INSERT INTO public.item VALUES (2)")
    pipeline.drain()
    plan = make_plan(pipeline.task("merge"))
    assert plan is not None
    (planned,) = [table for table in plan.tables if table.table == "public.item"]
    assert planned.after is None, "the Delta tables stand before it, wherever they stand"
    assert [batch.start_lsn >= passed for batch in planned.batches] == [True]


def test_a_table_that_has_nothing_but_its_history_is_not_passed_over(captured: Pipeline) -> None:
    pipeline = captured
    pipeline.with_tables("public.log")
    pipeline.execute("CREATE TABLE public.log (note text)")
    pipeline.capture()
    pipeline.execute("INSERT INTO public.log VALUES ('once')")
    pipeline.drain()
    parked(pipeline, "public.log")
    sentence, done = table_commands.pass_over(pipeline.config, "public.log", ledger=pipeline.ledger)
    assert not done
    assert "unpark it with --anew" in sentence
    assert pipeline.table_row("public.log").life.is_parked


def test_the_ways_on_name_the_smallest_repair_first(pipeline: Pipeline) -> None:
    back, past = ending_commands(pipeline.config, "public.item", GONE)
    assert "unpark" in back
    assert "--past" not in back
    assert past.startswith("To pass over what is staged of it: tidemark unpark ")
    assert " public.item --past; then let a run of " in past
    error = ErrorRecord("PositionBelowPlan", "FIX_TARGET", "it was removed")
    ways = ending_commands(pipeline.config, "public.item", error)
    rebuild = next(way for way in ways if "_replay" in way)
    conf = json.loads(rebuild.partition("--conf '")[2].partition("'")[0])
    assert conf == {"step": "rebuild", "tables": ["public.item"]}
    assert "--anew" in ways[-1]
