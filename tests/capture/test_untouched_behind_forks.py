"""A standby took over that has neither the slot nor all that was staged: of the tables only those are read again, or
their rows, that lost transactions and the WAL of the gap name. A pair of PostgreSQL 18 with its own extensions; no
Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sandbox.services.postgres import PostgresServer, running_with_extensions, wait_for
from tests.capture.test_untouched_tables import settle_behind
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tests.support.standby import Standby, standby_of
from tidemark import postgres_session
from tidemark.ledger import tables
from tidemark.lsn import Lsn
from tidemark.source.touched_files import Commit, Unread, touched_files

pytestmark = pytest.mark.thorough

TABLES: Final = ("lost", "emptied", "altered", "touched", "lost_and_touched", "prepared", "quiet")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "autovacuum": "off", "max_prepared_transactions": "5"}
    with running_with_extensions(tmp_path_factory.mktemp("contrib"), **settings) as contrib:
        yield contrib


@dataclass
class Pair:
    """The primary goes on where nobody looks any more, once its standby has taken over."""

    pipeline: Pipeline
    standby: Standby
    database: str

    def catch_up(self) -> None:
        wait_for("the standby has all", lambda: self.standby.replayed(str(self.pipeline.flush_lsn())))

    def promote(self) -> None:
        self.pipeline.close()
        self.standby.promote()
        self.pipeline.source = self.standby.conninfo(self.database)

    def told(self) -> str:
        """What preflight says, which makes the slot."""
        (error,) = self.pipeline.preflight().errors
        assert "timeline 2 instead of 1" in str(error)
        return str(error)


@pytest.fixture
def pair(server: PostgresServer, new_pipeline: Callable[..., Pipeline], tmp_path: Path) -> Iterator[Pair]:
    """Everything is staged, nothing is marked, and the standby has it all."""
    pipeline = new_pipeline(create_database(server, "source"))
    pipeline.with_tables("public.*")
    pipeline.execute("CREATE EXTENSION pg_walinspect", "SET search_path = public")
    for table in TABLES:
        pipeline.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        pipeline.execute(f"INSERT INTO {table} SELECT i, repeat('n', 100) FROM generate_series(1, 300) i")
    pipeline.capture()
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    name = f"of_{database}"
    with standby_of(
        server, tmp_path / "standby", database, slots=False, name=name, settings=server.settings
    ) as standby:
        # A base backup has no WAL from before.
        pipeline.execute("SELECT pg_logical_emit_message(false, 'of a neighbour', repeat('x', 20000), true)")
        settle_behind(pipeline)
        pipeline.ledger_query(
            "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL,"
            " backfill_since = NULL"
        )
        pair = Pair(pipeline, standby, database)
        pair.catch_up()
        yield pair
        pipeline.close()
    with psycopg.connect(server.conninfo(), autocommit=True) as old:
        old.execute("ROLLBACK PREPARED 'before'") if _is_prepared(old) else None
        old.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def _is_prepared(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute("SELECT 1 FROM pg_prepared_xacts").fetchone() is not None


def marked(pipeline: Pipeline) -> dict[str, Any]:
    """The tables that need a backfill: the keys, or the kind of those that need all rows."""
    return {
        table.removeprefix("public."): row.backfill_kind
        if row.lost_keys is None
        else sorted(int(key[0]) for key in row.lost_keys)
        for table, row in pipeline.table_rows().items()
        if row.life.needs_backfill
    }


def lose_some(pair: Pair) -> None:
    pair.standby.fall_behind()
    pair.pipeline.execute(
        "UPDATE lost SET note = 'lost' WHERE id = 2",
        "DELETE FROM lost WHERE id = 3",
        "UPDATE lost SET id = 1000 WHERE id = 4",
        "INSERT INTO lost_and_touched VALUES (1000, 'lost')",
    )
    pair.pipeline.drain()


LOST: Final = [2, 3, 4, 1000]


def test_lost_rows_and_touched_tables_are_marked_and_nothing_else(pair: Pair) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.execute("TRUNCATE emptied", "ALTER TABLE altered ADD COLUMN more int DEFAULT 7", "DELETE FROM altered")
    lose_some(pair)
    pair.promote()
    pipeline.execute(
        "UPDATE touched SET note = 'x' WHERE id = 1", "DELETE FROM lost_and_touched WHERE id = 7", search_path="public"
    )
    said = pair.told()
    assert "The source lost 6 transactions that the lake has" in said
    assert "public.lost (4 rows)" in said
    assert "the source's WAL shows that 2 others were not changed" in said
    whole = dict.fromkeys(("emptied", "altered", "touched", "lost_and_touched"), tables.GAP)
    assert marked(pipeline) == {**whole, "lost": LOST}
    pipeline.sound()
    pipeline.execute("INSERT INTO quiet VALUES (1000, 'after the gap')")
    pipeline.drain()
    (batch,) = pipeline.registered(2)
    assert [changes.table for changes in pipeline.manifest(batch).tables if changes.files] == ["public.quiet"]
    (backfill,) = [one for one in pipeline.plan() if one.table == "public.lost"]
    assert (backfill.mode, backfill.sweeps) == ("keys", True)
    pipeline.read()
    assert [row["id"] for row in pipeline.rows(backfill)] == [2, 3, 4]


def test_a_fork_that_lost_nothing_of_the_tables_and_a_gap_that_touched_none_say_nothing(pair: Pair) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.drain()
    pair.promote()
    pipeline.execute("CREATE TABLE another (id int)")
    assert not pipeline.preflight().errors
    generation = pipeline.generation()
    assert generation is not None
    assert (generation.number, generation.timeline) == (2, 2)
    assert marked(pipeline) == {}
    pipeline.drain()


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_what_was_prepared_before_the_fork_and_commits_behind_it_may_have_touched_anything(
    pair: Pair, ends: str
) -> None:
    """The old server rolled it back, and the slot went on above all of its WAL."""
    pipeline = pair.pipeline
    pipeline.execute("BEGIN; DELETE FROM prepared WHERE id = 1; PREPARE TRANSACTION 'before'")
    pipeline.drain()
    pair.catch_up()
    pair.standby.fall_behind()
    pipeline.execute("ROLLBACK PREPARED 'before'")
    lose_some(pair)
    pair.promote()
    pipeline.execute(f"{ends} PREPARED 'before'")
    said = pair.told()
    if ends == "COMMIT":
        assert "every table is marked, since a transaction was committed that had been prepared before" in said
        assert set(marked(pipeline)) == set(TABLES)
    else:
        assert marked(pipeline) == {"lost": LOST, "lost_and_touched": [1000]}


def test_what_was_prepared_behind_the_fork_has_all_of_its_wal_there(pair: Pair) -> None:
    pipeline = pair.pipeline
    lose_some(pair)
    pair.promote()
    pipeline.execute(
        "BEGIN; DELETE FROM public.prepared WHERE id = 1; PREPARE TRANSACTION 'before'", "COMMIT PREPARED 'before'"
    )
    pair.told()
    assert marked(pipeline) == {"lost": LOST, "lost_and_touched": [1000], "prepared": tables.GAP}


def test_the_last_transaction_that_was_staged_is_known_where_it_is_no_heartbeat(pair: Pair) -> None:
    """The run before ended early, and the one that staged more is lost with that."""
    pipeline = pair.pipeline
    pipeline.with_bounds(batch_rows=2)
    pipeline.execute("INSERT INTO quiet VALUES (1000, 'common')", "INSERT INTO quiet VALUES (1001, 'common')")
    pipeline.drain(run_s=0)
    generation = pipeline.generation()
    assert generation is not None
    assert generation.heartbeat_lsn is not None
    assert generation.heartbeat_lsn < generation.staged_lsn
    pipeline.execute("INSERT INTO quiet VALUES (1002, 'common, and in a batch with what is lost')")
    pair.catch_up()
    pipeline.with_bounds(batch_rows=1_000_000)
    lose_some(pair)
    pair.promote()
    pipeline.execute("UPDATE public.touched SET note = 'x' WHERE id = 1")
    pair.told()
    assert marked(pipeline) == {"lost": LOST, "lost_and_touched": [1000], "touched": tables.GAP}


def test_a_table_that_joined_in_the_lost_part_needs_all_rows(pair: Pair) -> None:
    pipeline = pair.pipeline
    lose_some(pair)
    above = pipeline.staged_lsn()
    pipeline.ledger_query("UPDATE tidemark.tables SET joined_lsn = %s WHERE \"table\" = 'public.quiet'", above)
    pair.promote()
    pair.told()
    assert marked(pipeline) == {"lost": LOST, "lost_and_touched": [1000], "quiet": tables.GAP}


def test_a_table_that_needed_all_rows_before_does_so_behind(pair: Pair) -> None:
    pipeline = pair.pipeline
    pipeline.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = true, backfill_kind = 'existing_rows', backfill_since = now(),"
        " backfill_reason = 'it had rows', marks = marks + 1 WHERE \"table\" = 'public.lost'"
    )
    lose_some(pair)
    pair.promote()
    pair.told()
    assert marked(pipeline) == {"lost": tables.GAP, "lost_and_touched": [1000]}


def test_a_staged_transaction_is_known_by_its_place_its_id_and_its_time(pair: Pair) -> None:
    pipeline = pair.pipeline
    pipeline.execute("INSERT INTO quiet VALUES (1000, 'staged')")
    pipeline.drain()
    row = next(row for row in pipeline.transactions() if row["tables"] == ["public.quiet"])
    end_lsn = pipeline.flush_lsn()
    commit = Commit(Lsn(row["commit_lsn"]), row["xid"], row["committed_at"])
    others = [
        Commit(commit.commit_lsn, commit.xid + 1, commit.committed_at),
        Commit(commit.commit_lsn, commit.xid, commit.committed_at.replace(year=2001)),
        Commit(Lsn(commit.commit_lsn - 8), commit.xid, commit.committed_at),
    ]
    with postgres_session.connect(pipeline.source, application_name="test") as source:
        touched_files(source, None, end_lsn, known=commit)
        for other in others:
            with pytest.raises(Unread, match="does not hold the last transaction that was staged"):
                touched_files(source, None, end_lsn, known=other)
