"""What a cycle reads does not grow with what its run, or its table, has behind it. Rows of the ledger are counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import sql

from tests.support.pipeline import Pipeline
from tidemark.capture.following.merge_cycles import MergeCycles
from tidemark.capture.following.window import FollowWindow
from tidemark.capture.merge_planning import ingest, leased_plan
from tidemark.formats import layout
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger.staged import applied_positions
from tidemark.observe import run_verdict

RUN = "following"
OLD_BATCHES = 20_000


def grow_old(pipeline: Pipeline, first: int, last: int) -> None:
    """Batches of these numbers, each with a plan of its own, as if the run had staged and merged them."""
    values = {"pipeline": pipeline.config.pipeline, "first": first, "last": last, "run": RUN}
    with pipeline.ledger_connection() as ledger:
        ledger.execute(
            """
            INSERT INTO tidemark.batches
                   (pipeline, generation, start_lsn, end_lsn, attempt, run_id, manifest, created_at, changes, bytes,
                    transaction_count, skipped_messages, heartbeat_lsn, last_committed_at)
            SELECT %(pipeline)s, 1, '0/1000'::pg_lsn + n * 16, '0/1010'::pg_lsn + n * 16, 'attempt', %(run)s,
                   'p/' || n || '/manifest.json', now(), 1, 100, 1, 0, '0/1000'::pg_lsn + n * 16, now()
              FROM generate_series(%(first)s::int, %(last)s::int) n
            """,
            values,
        )
        ledger.execute(
            """
            INSERT INTO tidemark.batch_tables
                   (pipeline, generation, "table", start_lsn, end_lsn, files, counts, converted, unchanged, moved,
                    changes, bytes, max_xid, first_committed_at)
            SELECT b.pipeline, 1, 'public.orders', b.start_lsn, b.end_lsn, '[]', '{"insert": 1}', '{}', 0, 0, 1, 100,
                   700, now()
              FROM tidemark.batches b
             WHERE b.attempt = 'attempt' AND b.end_lsn > '0/1010'::pg_lsn + (%(first)s::int - 1) * 16
            """,
            values,
        )
        ledger.execute(
            """
            INSERT INTO tidemark.plans (pipeline, plan, generation, run_id, holder, path, tables, created_at, result,
                   ingested_at)
            SELECT %(pipeline)s, 'old' || n, 1, %(run)s, 'merge', 'p/plans/old' || n || '/plan.json',
                   jsonb_build_object('public.orders', ('0/1010'::pg_lsn + n * 16)::text),
                   now() - make_interval(secs => 2 * (%(last)s::int - n)),
                   jsonb_build_object('tables', jsonb_build_array(jsonb_build_object('table', 'public.orders',
                       'history_lsn', ('0/1010'::pg_lsn + n * 16)::text, 'current_lsn',
                       ('0/1010'::pg_lsn + n * 16)::text, 'rows', '{"history": 1}'::jsonb, 'seconds', 0.1))),
                   now() - make_interval(secs => 2 * (%(last)s::int - n))
              FROM generate_series(%(first)s::int, %(last)s::int) n
            """,
            values,
        )
        ledger.connection.execute("ANALYZE")


def merge(pipeline: Pipeline) -> None:
    """Plan what is staged, and bring the result into the ledger that a driver would write."""
    run = pipeline.task("merge", RUN)
    with leased_plan(run) as plan:
        assert plan is not None
        results = tuple(TableResult(table.table, table.end_lsn, table.end_lsn) for table in plan.tables)
        result = PlanResult(plan=plan.plan, pipeline=plan.pipeline, generation=plan.generation, tables=results)
        pipeline.store.write_new(layout.result_file(plan.pipeline, plan.plan), result.to_json().encode())
        assert ingest(run).plans == (plan.plan,)


def cycle(pipeline: Pipeline, number: int) -> None:
    """What drain and merge do once, and how a drain confirms."""
    pipeline.execute(f"INSERT INTO orders VALUES ({number}, 1, 'n')")
    pipeline.drain(f"run of its own {number}")
    merge(pipeline)
    with pipeline.ledger_connection() as ledger:
        assert applied_positions.confirmable(ledger) == pipeline.staged_lsn()


def rows_read(pipeline: Pipeline, work: Callable[[], Any]) -> dict[str, int]:
    """Of the ledger's tables, how many rows and index entries the work reads. Sessions count when they end."""

    def counts() -> dict[str, int]:
        rows = pipeline.ledger_query(
            """
            SELECT t.relname, t.seq_tup_read + coalesce(t.idx_tup_fetch, 0) + coalesce(
                   (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid), 0)::bigint
              FROM pg_stat_user_tables t WHERE t.schemaname = 'tidemark'
            """
        )
        return dict(rows)

    before = counts()
    work()
    return {name: read - before.get(name, 0) for name, read in counts().items() if read > before.get(name, 0)}


def rows_read_young_and_old(pipeline: Pipeline, work: Callable[[], Any]) -> tuple[int, int]:
    """Behind twenty batches of the run, and behind thousands."""
    grow_old(pipeline, 1, 20)
    work()
    young = rows_read(pipeline, work)
    grow_old(pipeline, 21, OLD_BATCHES)
    work()
    old = rows_read(pipeline, work)
    print(young, old, sep="\n")
    return sum(young.values()), sum(old.values())


@pytest.fixture
def captured(pipeline: Pipeline) -> Pipeline:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int, note text)")
    pipeline.begin()
    with pipeline.ledger_connection() as ledger:  # an index is taken where there is one, however few the rows are
        ((database,),) = ledger.execute("SELECT current_database()").fetchall()
        ledger.execute(sql.SQL("ALTER DATABASE {} SET enable_seqscan = off").format(sql.Identifier(database)))
    cycle(pipeline, 0)
    return pipeline


def test_a_cycle_reads_no_more_rows_after_thousands(captured: Pipeline) -> None:
    numbers = itertools.count(1)
    young, old = rows_read_young_and_old(captured, lambda: cycle(captured, next(numbers)))
    assert old <= young + OLD_BATCHES // 100  # no cycle is like another to the row


def test_the_health_of_a_minute_reads_no_more_rows_after_thousands(captured: Pipeline) -> None:
    run = captured.task("merge", RUN)
    young, old = rows_read_young_and_old(captured, lambda: run_verdict.examine(run, tell=lambda _: None))
    assert old <= young
    ((batches, changes),) = captured.ledger_query("SELECT batches, changes FROM tidemark.runs WHERE run_id = %s", RUN)
    assert (batches, changes) == (20, 20), "those of later are below what was counted"


class Idle:
    """An application that gets no order."""

    def order(self, plan: str) -> None:
        raise AssertionError(plan)

    def is_ready(self) -> bool:
        return True

    def has_ended(self) -> bool:
        return False


def test_the_end_of_a_merge_reads_no_more_rows_after_thousands(captured: Pipeline) -> None:
    window = FollowWindow(datetime.now(UTC), datetime.now(UTC), 2)

    def end() -> None:
        cycles = MergeCycles(captured.task("merge", RUN), window, "the drain", lambda: False)
        assert list(cycles.results(Idle())) == []

    young, old = rows_read_young_and_old(captured, end)
    assert old <= young
