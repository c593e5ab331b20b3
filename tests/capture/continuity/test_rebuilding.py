"""A lost ledger against the one that was there: what the lake gives back is the same, column by column."""

from __future__ import annotations

from typing import Any

from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.capture.continuity.ledger_rebuild import rebuild
from tidemark.capture.merge_planning import ingest
from tidemark.formats import layout
from tidemark.formats.merge_result import Holes, PlanResult, TableResult
from tidemark.ledger.migrations import migrate

# Table -> what its rows are known by, and the columns that nothing in the lake has.
KEPT = {
    "pipelines": ("pipeline", {"created_at", "file_digest", "file_noted_at"}),
    # Who opened it, and when; what the source said last.
    "generations": (
        "number",
        {
            "opened_at",
            "opened_by",
            "confirmed_lsn",
            "registered_at",
            "source_started_at",
            "error_raised_at",
        },
    ),
    "batches": ("end_lsn", {"registered_at"}),
    "batch_tables": ('end_lsn, "table"', set[str]()),
    "schema_versions": ('"table", version', {"registered_at"}),
    # What the source says of it, which the next run asks.
    "relations": ("relation_oid", {"name", "born", "gone_lsn", "gone_at", "noted_at"}),
    "shapes": ('"table"', {"begun_at"}),
    "positions": ('"table"', {"risen_at"}),
    "plans": ("plan", {"run_id", "holder", "created_at", "ingested_at"}),
}


def rows(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    order, gone = KEPT[table]
    every = pipeline.ledger_query(f"SELECT to_jsonb(t) FROM (SELECT * FROM tidemark.{table} ORDER BY {order}) t")
    return [{name: value for name, value in row.items() if name not in gone} for (row,) in every]


def merged(pipeline: Pipeline) -> None:
    """As if an application had applied all that is staged."""
    plan = make_plan(pipeline.task("merge"))
    assert plan is not None
    tables = tuple(
        TableResult(t.table, t.end_lsn, t.end_lsn, {"history": t.rows}, holes=Holes({"note": 1}, (("1",),)))
        for t in plan.tables
    )
    result = PlanResult(plan.plan, plan.pipeline, plan.generation, tables)
    path = layout.result_file(pipeline.config.pipeline, plan.plan)
    pipeline.store.write_atomic(path, result.to_json().encode())
    ingest(pipeline.task("merge"))


def live(pipeline: Pipeline) -> None:
    """A life with a changed definition, another shape, a backfill, merges, and batches that are not merged yet."""
    pipeline.execute("CREATE TABLE public.item (id int PRIMARY KEY, note text)")
    pipeline.execute("CREATE TABLE public.line (item int, number int, PRIMARY KEY (item, number))")
    pipeline.execute("INSERT INTO public.item SELECT i, 'before' FROM generate_series(1, 5) i")
    pipeline.capture()
    pipeline.execute("INSERT INTO public.item VALUES (6, 'in the stream')", "INSERT INTO public.line VALUES (1, 1)")
    pipeline.drain()
    merged(pipeline)
    pipeline.plan(tables=("public.item",), chunk_rows=2)
    pipeline.read()
    pipeline.execute("ALTER TABLE public.item ADD COLUMN more int", "UPDATE public.item SET more = 1 WHERE id = 6")
    pipeline.drain()
    merged(pipeline)
    pipeline.execute("DELETE FROM public.item WHERE id = 6", "TRUNCATE public.line")
    pipeline.execute("ALTER TABLE public.line DROP CONSTRAINT line_pkey, ADD PRIMARY KEY (number)")
    pipeline.execute("INSERT INTO public.line VALUES (2, 2)")
    pipeline.drain()


def looks(pipeline: Pipeline) -> dict[str, Any]:
    """What is known of the tables' holes, and of those that are captured what the catalogue said last."""
    return {
        table: (row.holes, row.hole_keys, row.fingerprint if row.life.is_captured else None)
        for table, row in pipeline.table_rows().items()
    }


def test_a_rebuilt_ledger_has_what_the_lost_one_had(pipeline: Pipeline) -> None:
    live(pipeline)
    before = {table: rows(pipeline, table) for table in KEPT}
    holes = looks(pipeline)
    pipeline.ledger_query("DROP SCHEMA tidemark CASCADE")
    migrate(pipeline.ledger)
    rebuilt = rebuild(pipeline.task("ledger"))
    waiting = {"public.item": 1, "public.line": 1, "public.line~2": 1}
    assert (rebuilt.batches, rebuilt.plans, rebuilt.unapplied) == (3, 2, waiting)
    assert {table: rows(pipeline, table) for table in KEPT} == before
    assert looks(pipeline) == holes
    again = rebuild(pipeline.task("ledger"))
    assert (again.batches, again.plans, again.generation) == (0, 0, rebuilt.generation)


def test_the_capture_goes_on_from_a_rebuilt_ledger(pipeline: Pipeline) -> None:
    live(pipeline)
    staged = pipeline.staged_lsn()
    pipeline.ledger_query("DROP SCHEMA tidemark CASCADE")
    migrate(pipeline.ledger)
    rebuild(pipeline.task("ledger"))
    pipeline.execute("INSERT INTO public.item VALUES (7, 'after the loss')")
    pipeline.sound()
    result = pipeline.drain()
    assert result.batches[0][0] == staged
    assert [row["id"] for row in pipeline.staged("public.item") if row["_op"] == "insert"] == [6, 7]
    # Nobody knows any more that it was read: what is not proven is read again.
    assert pipeline.table_row("public.item").life.needs_backfill
