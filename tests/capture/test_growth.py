"""A run costs what is new, however long the pipeline has been running: rows read are counted, not seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from benchmarks.growth import AgeingPipeline, StageMeter
from tidemark.wait_log import Wait

BATCHES = 3_000
# Of a table of the ledger so many rows more: a small table is read as a whole where it has statistics.
MARGIN = 200


def rows_read(ledger: str) -> dict[str, int]:
    """What was read of each of the ledger's tables so far, entries of indexes counted too."""
    with psycopg.connect(ledger, autocommit=True) as connection:
        # A session's counts are there once it has ended.
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        wait = Wait(30, every_s=0.02)
        while connection.execute(others).fetchone() != (0,):
            assert wait.pause(lambda: "the sessions of the run to end")
        return dict(
            connection.execute(
                """
                SELECT t.relname, t.seq_tup_read + coalesce(sum(i.idx_tup_read), 0)::bigint
                  FROM pg_stat_user_tables t LEFT JOIN pg_stat_user_indexes i USING (relid)
                 WHERE t.schemaname = 'tidemark' GROUP BY t.relid, t.relname, t.seq_tup_read
                """
            ).fetchall()
        )


@pytest.mark.some(1)
@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
def test_a_run_reads_no_more_of_a_ledger_that_is_years_old(
    new_database: Callable[[str], str], tmp_path: Path, analyzed: bool
) -> None:
    pipeline = AgeingPipeline(new_database("source"), new_database("ledger"), tmp_path / "lake", tables=3)

    def one_run() -> dict[str, int]:
        before = rows_read(pipeline.ledger)
        pipeline.run(StageMeter())
        return {table: count - before[table] for table, count in rows_read(pipeline.ledger).items()}

    pipeline.run(StageMeter())
    young = one_run()
    pipeline.grow(BATCHES)
    if analyzed:
        pipeline.analyze()
    old = one_run()
    assert {table: (count, young[table]) for table, count in old.items() if count > young[table] + MARGIN} == {}
