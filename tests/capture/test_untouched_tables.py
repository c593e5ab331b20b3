"""A gap whose WAL the source still has, and lets be read: the tables that no transaction touched need no backfill. A
PostgreSQL 18 with its own extensions; no Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer, running_with_extensions, wait_for
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tests.support.standby import standby_of
from tidemark import postgres_session
from tidemark.ledger import tables
from tidemark.lsn import Lsn
from tidemark.source import touched_files as wal
from tidemark.source.touched_files import Heartbeat, Unread, touched_files

# By table: what happens to it in the gap. Each has 300 rows, of some pages.
TOUCHED: Final = {
    "inserted": ["INSERT INTO inserted VALUES (1000, 'x')"],
    "updated": ["UPDATE updated SET note = 'x' WHERE id = 300"],
    "updated_in_its_page": ["UPDATE updated_in_its_page SET note = 'y' WHERE id = 1"],
    "deleted": ["DELETE FROM deleted WHERE id = 7"],
    "cut_by_vacuum": ["DELETE FROM cut_by_vacuum WHERE id > 200", "VACUUM cut_by_vacuum"],
    "emptied_by_vacuum": ["DELETE FROM emptied_by_vacuum", "VACUUM emptied_by_vacuum"],
    "come_and_gone": [
        "INSERT INTO come_and_gone SELECT i, repeat('n', 100) FROM generate_series(1001, 1300) i",
        "DELETE FROM come_and_gone WHERE id > 1000",
        "VACUUM come_and_gone",
    ],
    "truncated": ["TRUNCATE truncated"],
    "filled_anew": [
        "BEGIN; TRUNCATE filled_anew; COPY filled_anew (id) FROM PROGRAM 'echo 1; echo 2' WITH (FREEZE); COMMIT"
    ],
    "toasted": ["UPDATE toasted SET note = repeat('t', 9000) WHERE id = 3"],
    "rewritten": ["ALTER TABLE rewritten ALTER id TYPE int USING id + 1"],
    "with_a_default": ["ALTER TABLE with_a_default ADD COLUMN more int DEFAULT 7"],
    "made_again": ["DROP TABLE made_again", "CREATE TABLE made_again (id int PRIMARY KEY, note text)"],
    "parted": ["UPDATE parted SET note = 'x' WHERE id = 1"],
    "parted_and_cut": ["TRUNCATE parted_and_cut_high"],
    "parted_and_lost": ["DROP TABLE parted_and_lost_high"],
    "by_a_part_of_a_transaction": ["BEGIN; SAVEPOINT a; DELETE FROM by_a_part_of_a_transaction; COMMIT"],
    "begun_before": [],
    "of_another_access_method": [],
    "elsewhere": ["UPDATE elsewhere SET note = 'x' WHERE id = 300"],
    "prepared_before": ["COMMIT PREPARED 'before'"],
    # Nothing is different behind these, and nobody knows.
    "rewritten_by_vacuum": ["VACUUM FULL rewritten_by_vacuum"],
    "moved": ["ALTER TABLE moved SET TABLESPACE other_place"],
}
UNTOUCHED: Final = {
    "quiet": [],
    "rolled_back_in_part": ["BEGIN; SAVEPOINT a; SAVEPOINT b; DELETE FROM rolled_back_in_part; ROLLBACK TO a; COMMIT"],
    "rolled_back": ["BEGIN; DELETE FROM rolled_back; ROLLBACK"],
    "vacuumed": ["VACUUM (FREEZE, ANALYZE) vacuumed"],
    "looked_at": ["CHECKPOINT", "SELECT * FROM looked_at", "ANALYZE looked_at"],
    "locked": ["SELECT * FROM locked FOR UPDATE"],
    "referred_to": ["INSERT INTO inserted VALUES (1001, 'x', 5)"],
    "parted_and_quiet": [],
    "quiet_elsewhere": [],
    "empty": [],
}
FIRST_OF_OURS: Final = 16384  # OIDs, and so numbers of files, that initdb does not give out
ELSEWHERE: Final = ("elsewhere", "quiet_elsewhere")
PARTED: Final = ("parted", "parted_and_cut", "parted_and_lost", "parted_and_quiet")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    settings = {
        "fsync": "off",
        "autovacuum": "off",
        "max_prepared_transactions": "5",
        "allow_in_place_tablespaces": "on",
    }
    with running_with_extensions(tmp_path_factory.mktemp("contrib"), **settings) as contrib:
        with psycopg.connect(contrib.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLESPACE other_place LOCATION ''")
        yield contrib


@pytest.fixture
def pipeline(server: PostgresServer, new_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """All tables with their rows, staged, and the slot behind them."""
    pipeline = new_pipeline(create_database(server, "source"))
    pipeline.with_tables("public.*")
    pipeline.execute("CREATE EXTENSION pg_walinspect", "SET search_path = public")
    pipeline.execute("CREATE ACCESS METHOD other_heap TYPE TABLE HANDLER heap_tableam_handler")
    for table in (*TOUCHED, *UNTOUCHED):
        if table in PARTED:
            pipeline.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
                f"CREATE TABLE {table}_low PARTITION OF {table} FOR VALUES FROM (0) TO (150)",
                f"CREATE TABLE {table}_high PARTITION OF {table} FOR VALUES FROM (150) TO (2000)",
            )
        else:
            method = "other_heap" if table == "of_another_access_method" else "heap"
            place = "other_place" if table in ELSEWHERE else "pg_default"
            pipeline.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text) USING {method} TABLESPACE {place}")
        if table != "empty":
            pipeline.execute(f"INSERT INTO {table} SELECT i, repeat('n', 100) FROM generate_series(1, 300) i")
    pipeline.execute(
        "ALTER TABLE toasted ALTER note SET STORAGE EXTERNAL",
        "UPDATE updated_in_its_page SET note = 'x' WHERE id < 9",
        "VACUUM updated_in_its_page",
        "ALTER TABLE inserted ADD COLUMN of int REFERENCES referred_to",
    )
    pipeline.capture()
    settle_behind(pipeline)
    pipeline.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL,"
        " backfill_since = NULL"
    )
    return pipeline


def settle_behind(pipeline: Pipeline) -> None:
    """Until the slot begins to read above all that there is now, and the ledger knows."""
    now = pipeline.flush_lsn()

    def is_behind() -> bool:
        pipeline.sql("SELECT pg_log_standby_snapshot()")
        pipeline.drain()
        with suppress(psycopg.errors.ObjectInUse):  # the drain's session is still going
            pipeline.advance(pipeline.staged_lsn())
        generation = pipeline.generation()
        return generation is not None and generation.restart_lsn is not None and generation.restart_lsn > now

    wait_for("the slot reads from behind the rows on", is_behind, 120)


def drop_slot(pipeline: Pipeline) -> None:
    def dropped() -> bool:
        with suppress(psycopg.errors.ObjectInUse):
            pipeline.drop_slot()
            return True
        return False

    wait_for("the slot is free and gone", dropped)


def marked(pipeline: Pipeline) -> set[str]:
    rows = pipeline.table_rows().values()
    assert {row.backfill_kind for row in rows if row.life.needs_backfill} <= {tables.GAP}
    return {row.table.removeprefix("public.") for row in rows if row.life.needs_backfill}


def error(pipeline: Pipeline) -> str:
    (said,) = pipeline.preflight().errors
    return str(said)


def test_a_gap_marks_exactly_the_tables_that_its_wal_touches(pipeline: Pipeline) -> None:
    pipeline.execute("BEGIN; DELETE FROM begun_before WHERE id = 1", session="long", search_path="public")
    pipeline.execute("BEGIN; DELETE FROM prepared_before WHERE id = 1; PREPARE TRANSACTION 'before'")
    pipeline.execute("SELECT pg_logical_emit_message(false, 'of a neighbour', repeat('x', 20000), true)")
    for _ in range(3):
        pipeline.sql("SELECT pg_log_standby_snapshot()")
        pipeline.drain()
        with suppress(psycopg.errors.ObjectInUse):
            pipeline.advance(pipeline.staged_lsn())
    drop_slot(pipeline)
    for statements in (*TOUCHED.values(), *UNTOUCHED.values()):
        pipeline.execute(*statements)
    pipeline.execute("COMMIT", session="long")
    said = error(pipeline)
    gone = {"made_again"}  # what has its name now is another table, which joins
    assert marked(pipeline) - gone == set(TOUCHED) - gone
    assert "Start a backfill of the tables that are marked: public.begun_before, " in said
    assert f"the source's WAL shows that {len(UNTOUCHED)} others were not changed" in said
    pipeline.sound()
    pipeline.execute("INSERT INTO quiet VALUES (1000, 'after the gap')")
    pipeline.drain()
    (batch,) = pipeline.registered(2)
    assert [changes.table for changes in pipeline.manifest(batch).tables if changes.files] == ["public.quiet"]
    assert "quiet" not in marked(pipeline)


@pytest.mark.thorough
def test_a_truncate_between_what_is_staged_and_the_look_of_the_last_run_is_seen_by_the_file_that_it_made(
    pipeline: Pipeline,
) -> None:
    """The run ended early: its look, and with it the ledger, knows the new file, and nothing was written to that. What
    is known is a transaction, above the last heartbeat."""
    pipeline.with_bounds(batch_rows=1)
    pipeline.execute("INSERT INTO inserted VALUES (1000, 'x')", "TRUNCATE truncated")
    pipeline.drain(run_s=0)
    drop_slot(pipeline)
    (known,) = pipeline.ledger_query(
        "SELECT (fingerprint ->> 'relfilenode')::bigint FROM tidemark.tables WHERE \"table\" = 'public.truncated'"
    )
    assert known == (pipeline.one("SELECT pg_relation_filenode('truncated')"),)
    error(pipeline)
    assert marked(pipeline) == {"truncated", "of_another_access_method"}


@pytest.mark.thorough
def test_a_gap_that_touched_nothing_is_no_error_and_marks_nothing(pipeline: Pipeline) -> None:
    pipeline.execute("DROP TABLE of_another_access_method")
    pipeline.sound()
    drop_slot(pipeline)
    pipeline.execute("CREATE TABLE another (id int)", "VACUUM quiet")
    report = pipeline.preflight()
    assert not report.errors
    assert marked(pipeline) == set()
    generation = pipeline.generation()
    assert generation is not None
    assert generation.number == 2
    pipeline.drain()


@pytest.mark.thorough
def test_a_table_that_joined_after_the_last_drain_is_marked(pipeline: Pipeline) -> None:
    """By what it was judged may be lost with a promotion."""
    pipeline.ledger_query(
        "UPDATE tidemark.tables SET joined_lsn = %s WHERE \"table\" = 'public.quiet'", Lsn(pipeline.staged_lsn() + 1)
    )
    drop_slot(pipeline)
    error(pipeline)
    assert marked(pipeline) == {"quiet", "of_another_access_method"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["DROP EXTENSION pg_walinspect"], "the extension pg_walinspect, .* is not in the database"),
        (["SELECT pg_switch_wal()", "CHECKPOINT", "CREATE TABLE more (id int)"] * 4, "the source has not all WAL from"),
    ],
    ids=["no extension", "the WAL is gone"],
)
def test_where_the_wal_does_not_say_every_table_is_marked_and_why(
    pipeline: Pipeline, statements: list[str], why: str
) -> None:
    pipeline.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")  # of other tests, too
    for number, statement in enumerate(statements):
        pipeline.execute(statement.replace("more", f"more_{number}"))
    said = error(pipeline)
    assert re.search(f"every table is marked, since {why}", said), said
    assert marked(pipeline) >= set(UNTOUCHED)


@pytest.mark.thorough
@pytest.mark.parametrize("tells", [False, True])
def test_rows_that_a_fork_named_are_all_rows_behind_a_gap(pipeline: Pipeline, *, tells: bool) -> None:
    if not tells:
        pipeline.execute("DROP EXTENSION pg_walinspect")
    pipeline.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = true, backfill_kind = 'fork', backfill_since = now(),"
        " backfill_reason = 'lost', marks = marks + 1,"
        " lost_keys = '[[\"1\"]]' WHERE \"table\" = 'public.quiet'"
    )
    drop_slot(pipeline)
    error(pipeline)
    assert pipeline.table_row("public.quiet").lost_keys is None


# --- the reading itself -----------------------------------------------------------------------------------------------


def read(pipeline: Pipeline, start: Lsn, end: Lsn, **other: Any) -> frozenset[int]:
    generation = pipeline.generation()
    assert generation is not None
    assert generation.heartbeat_lsn is not None
    (attempt,) = pipeline.ledger_query(
        "SELECT attempt FROM tidemark.batches WHERE end_lsn = %s", generation.heartbeat_lsn
    )
    with postgres_session.connect(other.pop("source", pipeline.source), application_name="test") as source:
        known = Heartbeat(generation.heartbeat_lsn, other.get("attempt", str(attempt[0])))
        return touched_files(source, start, end, known=known)


@pytest.mark.thorough
def test_slices_of_any_length_read_the_same(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    start = pipeline.staged_lsn()
    for table in ("inserted", "updated", "deleted", "toasted"):
        pipeline.execute("CHECKPOINT", *TOUCHED[table])
    end = pipeline.flush_lsn()

    def of_tables() -> set[int]:
        """A catalogue's files may be counted too often: what commits in another slice is not settled."""
        return {file for file in read(pipeline, start, end) if file >= FIRST_OF_OURS}

    whole = of_tables()
    assert len(whole) >= 4
    for slice_bytes in (200, 5_000):
        monkeypatch.setattr(wal, "SLICE_BYTES", slice_bytes)
        assert of_tables() == whole


@pytest.mark.thorough
def test_wal_without_the_heartbeat_that_was_staged_is_another_servers(pipeline: Pipeline) -> None:
    with pytest.raises(Unread, match="does not hold the last transaction that was staged"):
        read(pipeline, pipeline.staged_lsn(), pipeline.flush_lsn(), attempt="00000000-0000-0000-0000-000000000000")


@pytest.mark.thorough
def test_the_right_to_call_one_function_is_enough(pipeline: Pipeline, server: PostgresServer) -> None:
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    pipeline.execute(f"CREATE ROLE reader_{database} LOGIN PASSWORD '{server.password}'")
    lesser = make_conninfo(pipeline.source, user=f"reader_{database}")
    start, end = pipeline.staged_lsn(), pipeline.flush_lsn()
    with pytest.raises(Unread, match="may not call pg_get_wal_records_info"):
        read(pipeline, start, end, source=lesser)
    pipeline.execute(f"GRANT EXECUTE ON FUNCTION pg_get_wal_records_info(pg_lsn, pg_lsn) TO reader_{database}")
    assert read(pipeline, start, end, source=lesser) == read(pipeline, start, end)


# --- promotions -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_standby_without_the_slot_marks_what_was_changed_there(
    server: PostgresServer, pipeline: Pipeline, tmp_path: Path
) -> None:
    """The WAL that is read crosses from one timeline to the next."""
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    options = {"name": f"of_{database}", "settings": server.settings}
    with standby_of(server, tmp_path / "standby", database, slots=False, **options) as standby:
        # A base backup has no WAL from before.
        pipeline.execute("SELECT pg_logical_emit_message(false, 'of a neighbour', repeat('x', 20000), true)")
        settle_behind(pipeline)
        pipeline.execute("UPDATE updated SET note = 'never sent' WHERE id = 1")
        wait_for("the standby has all", lambda: standby.replayed(str(pipeline.flush_lsn())))
        pipeline.close()
        standby.promote()
        pipeline.source = standby.conninfo(database)
        pipeline.execute("DELETE FROM public.deleted WHERE id = 1")
        said = error(pipeline)
        assert "timeline 2 instead of 1" in said
        assert "every table is marked" not in said, said
        assert marked(pipeline) == {"updated", "deleted", "of_another_access_method"}
        with psycopg.connect(server.conninfo(), autocommit=True) as old:
            old.execute("SELECT pg_drop_replication_slot(%s)", (f"of_{database}",))
