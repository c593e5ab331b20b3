"""How ranges are read: beside each other, again after a death, under locks and policies, on the primary alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import running, wait_for
from tests.support.pipeline import Pipeline
from tests.support.roles import login
from tests.support.standby import standby_of
from tests.support.thorough import either
from tidemark.backfill.range_reading import ReadResult
from tidemark.config import TableRule
from tidemark.errors import JoinHorizonAhead, ReadRefused, SourceInRecovery, SourceLocked
from tidemark.formats.snapshot import Snapshot
from tidemark.formats.watermark import Watermark
from tidemark.ledger import leases
from tidemark.lsn import Lsn


def a_table(captured: Pipeline, rows: int = 100) -> None:
    captured.execute(
        "CREATE TABLE t (n int PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {rows}) AS i",
        "ANALYZE t",
    )
    captured.capture()


def messages(captured: Pipeline) -> list[Watermark]:
    """The watermarks in the WAL, in commit order; the pipeline's own slot is only looked into."""
    changes = captured.connection.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
        "'publication_names', %s, 'messages', 'true')",
        (captured.config.slot, captured.config.publication),
    ).fetchall()
    # Two bytes of JSON: an LSN in front of it may hold the first one alone.
    contents = [data[data.index(b'{"') :] for (data,) in changes if data.startswith(b"M") and b'{"' in data]
    marks = [Watermark.parse(content) for content in contents]
    return [mark for mark in marks if mark is not None]


def ns(captured: Pipeline, backfill: Any) -> list[int]:
    return [row["n"] for row in captured.rows(backfill)]


def test_an_empty_table_is_one_range_and_one_chunk_without_rows(captured: Pipeline) -> None:
    captured.execute("CREATE TABLE t (n int PRIMARY KEY)")
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"])
    assert captured.read() == ReadResult(chunks=1, rows=0, ranges=1)
    (chunk,) = captured.chunks(backfill)
    assert (chunk.rows, chunk.files, chunk.lower, chunk.upper) == (0, (), None, None)
    assert [r.done for r in captured.ranges(backfill)] == [True]


def test_a_range_that_ends_with_its_chunk_ends_with_an_empty_one(captured: Pipeline) -> None:
    a_table(captured, rows=20)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    captured.read()
    assert ns(captured, backfill) == list(range(1, 21))
    assert [(r.lower, r.upper, r.done) for r in captured.ranges(backfill)] == [
        (None, ("10",), True),
        (("10",), None, True),
    ]
    assert sorted((c.chunk, c.rows) for c in captured.chunks(backfill)) == [
        ("1-1", 10),
        ("1-2", 0),
        ("2-1", 10),
    ]


def test_a_chunk_stands_between_its_watermarks_with_snapshot_and_fingerprint(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    captured.read()
    (chunk,) = captured.chunks(backfill)
    low, high = messages(captured)
    assert (low.side, high.side) == ("low", "high")
    for mark in (low, high):
        assert (mark.backfill, mark.chunk, mark.attempt) == (backfill.backfill, chunk.chunk, chunk.attempt)
        assert (mark.pipeline, mark.generation, mark.table) == (captured.config.pipeline, 1, "public.t")
    row = captured.table_row("public.t")
    assert row.join_horizon is not None
    assert Snapshot.parse(backfill.snapshot).xmin >= row.join_horizon
    assert Snapshot.parse(chunk.snapshot).xmin >= Snapshot.parse(backfill.snapshot).xmin
    assert chunk.fingerprint["columns"][1]["name"] == "v"


def test_what_a_chunks_snapshot_saw_lies_below_its_lsn_and_its_high_watermark_above(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    before = Lsn.parse(captured.one("SELECT pg_current_wal_insert_lsn()::text"))
    captured.read()
    (chunk,) = captured.chunks(backfill)
    assert (
        before <= chunk.low_lsn < chunk.read_lsn < Lsn.parse(captured.one("SELECT pg_current_wal_insert_lsn()::text"))
    )


def test_two_readers_share_the_ranges(captured: Pipeline) -> None:
    a_table(captured, rows=4000)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=100, readers=2)
    assert len(captured.ranges(backfill)) == 8
    results: list[Any] = []
    readers = [threading.Thread(target=lambda n=n: results.append(captured.read(n))) for n in (1, 2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert ns(captured, backfill) == list(range(1, 4001))
    assert sum(result.rows for result in results) == 4000
    assert sum(result.ranges for result in results) == 8


def test_another_readers_range_is_left_alone(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    (key_range,) = captured.ranges(backfill)
    with leases.hold(captured.ledger, captured.config.pipeline, key_range.lease, "another"):
        assert captured.read().chunks == 0
    assert captured.read().rows == 100


def test_a_backfill_that_was_closed_is_not_read_on(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    monkeypatch.setattr(
        "tidemark.backfill.range_reading.reach",
        lambda name: (
            name == "read.before_chunk"
            and captured.ledger_query("UPDATE tidemark.backfills SET state = 'closed', state_reason = 'x' RETURNING 1")
        ),
    )
    assert captured.read().chunks == 0
    assert captured.chunks(backfill) == []
    assert captured.store.list(f"{captured.config.pipeline}/chunks/{backfill.backfill}/public.t") == []


def test_rows_that_change_under_the_reader_are_those_of_each_chunks_snapshot(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_table(captured, rows=30)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)

    def reach(name: str) -> None:
        if name == "read.after_chunk":
            captured.execute("UPDATE t SET v = v || '+'", "DELETE FROM t WHERE n = 15", "INSERT INTO t VALUES (0, 'x')")
            monkeypatch.undo()

    monkeypatch.setattr("tidemark.backfill.range_reading.reach", reach)
    captured.read()
    assert [row["v"][-1] == "+" for row in captured.rows(backfill)] == [False] * 10 + [True] * 19


def test_a_chunk_behind_a_rewriting_alter_reads_every_row(captured: Pipeline) -> None:
    a_table(captured)
    captured.with_bounds(lock_timeout_s=30)
    (backfill,) = captured.plan(tables=["public.t"])
    with psycopg.connect(captured.source) as altering:
        altering.execute("ALTER TABLE t ALTER n TYPE bigint")
        reader = threading.Thread(target=captured.read)
        reader.start()
        wait_for("the reader queues", lambda: captured.one("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        altering.commit()
    reader.join()
    assert ns(captured, backfill) == list(range(1, 101))
    (chunk,) = captured.chunks(backfill)
    assert chunk.fingerprint["columns"][0]["type_oid"] == 20


def test_a_lock_that_is_not_to_be_had_is_a_retry_and_nothing_is_recorded(captured: Pipeline) -> None:
    a_table(captured)
    captured.with_bounds(lock_timeout_s=1)
    (backfill,) = captured.plan(tables=["public.t"])
    with psycopg.connect(captured.source) as altering:
        altering.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceLocked, match=r"public\.t"):
            captured.read()
    assert captured.chunks(backfill) == []
    assert captured.read().rows == 100


def test_a_table_that_cannot_be_read_now_keeps_no_other_from_being_read(captured: Pipeline) -> None:
    a_table(captured)
    captured.execute("CREATE TABLE a_held (id int PRIMARY KEY); INSERT INTO a_held VALUES (1)")
    captured.execute("CREATE TABLE z_held (id int PRIMARY KEY); INSERT INTO z_held VALUES (1)")
    captured.capture()
    planned = captured.plan(tables=["public.*"])
    with psycopg.connect(captured.source) as other:
        other.execute("LOCK TABLE a_held, z_held IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceLocked):
            captured.read()
    unread = {b.table for b in planned if not all(key_range.done for key_range in captured.ranges(b))}
    assert unread == {"public.a_held", "public.z_held"}
    assert len(planned) > 2
    captured.read()
    assert all(key_range.done for b in planned for key_range in captured.ranges(b))


def test_a_policy_that_hides_rows_is_an_error(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    role = f"limited_{captured.config.pipeline}"
    captured.execute(
        login(role, captured.source, "REPLICATION"),
        f"GRANT SELECT ON t TO {role}",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON t USING (n < 10)",
    )
    whole, captured.source = captured.source, captured.source.replace("user=postgres", f"user={role}")
    assert whole != captured.source
    try:
        captured.read()
        assert "row-level security" in (captured.again(backfill).state_reason or "")
        with pytest.raises(ReadRefused, match="row-level security"):
            captured.plan(tables=["public.t"], replace=True)
    finally:
        captured.source = whole
        captured.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert captured.chunks(backfill) == []


def test_a_standby_is_refused(captured: Pipeline, tmp_path: Path) -> None:
    a_table(captured)
    captured.plan(tables=["public.t"])
    with (
        running(tmp_path / "primary", 18, fsync="off") as primary,
        standby_of(primary, tmp_path / "standby", "postgres") as standby,
    ):
        captured.source = standby.conninfo()
        with pytest.raises(SourceInRecovery):
            captured.read()


def test_a_snapshot_older_than_the_join_counts_for_nothing(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    with psycopg.connect(captured.source) as open_one:
        open_one.execute("CREATE TABLE holds_an_xid ()")
        captured.ledger_query(
            "UPDATE tidemark.tables SET join_horizon = join_horizon + 1000 WHERE \"table\" = 'public.t' RETURNING 1"
        )
        with pytest.raises(JoinHorizonAhead):
            captured.read()
    assert captured.chunks(backfill) == []


def test_a_key_that_does_not_fit_parks_the_table_and_the_others_go_on(captured: Pipeline) -> None:
    captured.execute("CREATE TABLE a (at timestamptz PRIMARY KEY)", "INSERT INTO a VALUES ('2024-01-01'), ('infinity')")
    a_table(captured)
    unfit, fit = captured.plan(tables=["public.*"])
    captured.read()
    assert ns(captured, fit) == list(range(1, 101))
    assert (captured.again(unfit).state, captured.chunks(unfit)) == ("closed", [])
    row = captured.table_row("public.a")
    assert row.life.merge == "parked"
    assert row.error is not None
    assert row.error.kind == "KeyValueUnfit"
    assert "infinity" not in row.error.message


def test_rows_without_a_key_park_the_table(captured: Pipeline) -> None:
    """PostgreSQL accepts the index for the identity though the NOT NULL of its column is not validated."""
    captured.execute(
        "CREATE TABLE t (n int, v text)",
        "INSERT INTO t VALUES (1, 'a'), (NULL, 'b')",
        "ALTER TABLE t ADD CONSTRAINT there NOT NULL n NOT VALID",
        "CREATE UNIQUE INDEX t_n ON t (n)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n",
    )
    captured.capture()
    captured.drain()
    captured.plan(tables=["public.t"])
    captured.read()
    row = captured.table_row("public.t")
    assert row.life.merge == "parked"
    assert row.error is not None
    assert (row.error.kind, "`ALTER TABLE … VALIDATE CONSTRAINT …`" in row.error.message) == ("KeyValueMissing", True)


def test_a_table_is_read_by_the_name_that_it_has_now(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    a_table(captured, rows=20)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    read_one_chunk(captured, monkeypatch)
    captured.execute("ALTER TABLE t RENAME TO other", "CREATE TABLE t (n int PRIMARY KEY, v text)")
    captured.execute("INSERT INTO t VALUES (15, 'of another table')")
    captured.read()
    assert [row["n"] for row in captured.rows(backfill)] == list(range(1, 21))
    assert "of another table" not in {row["v"] for row in captured.rows(backfill)}


@pytest.mark.parametrize("statement", ["DROP TABLE t", "ALTER PUBLICATION {} DROP TABLE t"])
def test_a_table_that_is_gone_ends_its_backfill(captured: Pipeline, statement: str) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    captured.execute(statement.format(captured.config.publication))
    captured.read()
    assert captured.again(backfill).state == "closed"
    assert "cannot be read" in (captured.again(backfill).state_reason or "")


def test_a_table_that_left_and_came_back_is_read_from_its_beginning(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_table(captured, rows=20)
    (first,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    read_one_chunk(captured, monkeypatch)
    captured.drain()
    rules = captured.config.tables
    captured.execute("CREATE TABLE other (n int PRIMARY KEY)")
    captured.with_tables(TableRule("public.other"))
    captured.capture()
    captured.execute("UPDATE t SET v = 'changed unseen' WHERE n < 5")
    captured.with_tables(*rules)
    captured.capture()
    captured.read()
    assert (captured.again(first).state, len(captured.chunks(first))) == ("closed", 1)
    second = next(b for b in captured.plan() if b.table == "public.t")
    captured.read()
    assert [row["n"] for row in captured.rows(second) if row["v"] == "changed unseen"] == [1, 2, 3, 4]


def test_a_lost_connection_is_a_retry(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.errors import DatabaseUnreachable

    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    name = captured.config.application_name
    monkeypatch.setattr(
        "tidemark.backfill.range_reading.reach",
        lambda _: captured.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '{name}'"
        ),
    )
    with pytest.raises(DatabaseUnreachable):
        captured.read()
    monkeypatch.undo()
    assert captured.read().rows == 100
    assert len(captured.chunks(backfill)) == 1


def test_an_inheritance_child_is_a_table_of_its_own(captured: Pipeline) -> None:
    a_table(captured)
    captured.execute("CREATE TABLE child (PRIMARY KEY (n)) INHERITS (t)", "INSERT INTO child VALUES (1000, 'c')")
    (backfill,) = captured.plan(tables=["public.t"])
    captured.read()
    assert ns(captured, backfill) == list(range(1, 101))


# --- without a key ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_table_without_key_is_one_chunk(captured: Pipeline, partitioned: bool) -> None:
    captured.execute(
        "CREATE TABLE t (n int, v text)" + (" PARTITION BY LIST (n)" if partitioned else ""),
        "CREATE TABLE p1 PARTITION OF t FOR VALUES IN (1, 2); CREATE TABLE p2 (v text, n int);"
        "ALTER TABLE t ATTACH PARTITION p2 DEFAULT; ALTER TABLE p1 REPLICA IDENTITY FULL;"
        "ALTER TABLE p2 REPLICA IDENTITY FULL"
        if partitioned
        else "SELECT",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i % 5, repeat('v', 100) FROM generate_series(1, 1000) AS i",
    )
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10)
    assert not backfill.sweeps
    captured.read()
    (chunk,) = captured.chunks(backfill)
    assert (chunk.rows, chunk.lower, chunk.upper) == (1000, None, None)
    assert sorted(ns(captured, backfill)) == sorted(i % 5 for i in range(1, 1001))


# --- the order of the key ---------------------------------------------------------------------------------------------

ANOTHER_COLLATION = "ALTER TABLE t ALTER k TYPE text COLLATE pg_c_utf8"
DOWNWARDS = "CREATE UNIQUE INDEX downwards ON t (k DESC); ALTER TABLE t REPLICA IDENTITY USING INDEX downwards"
ANOTHER_CLASS = "CREATE UNIQUE INDEX other ON t (k text_pattern_ops); ALTER TABLE t REPLICA IDENTITY USING INDEX other"
ANOTHER_KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)"
A_WIDER_KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k, n)"
NO_KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey, REPLICA IDENTITY FULL"
CHANGES_OF_ORDER = [ANOTHER_COLLATION, DOWNWARDS, ANOTHER_CLASS, ANOTHER_KEY, A_WIDER_KEY, NO_KEY]


def letters(captured: Pipeline) -> list[str]:
    """A table whose key is 'A' to 'Z' and 'a' to 'z', in the order of "C"."""
    captured.execute(
        'CREATE TABLE t (k text COLLATE "C" PRIMARY KEY, n int NOT NULL)',
        "INSERT INTO t SELECT chr(i), i FROM generate_series(65, 90) AS i UNION SELECT chr(i), i "
        "FROM generate_series(97, 122) AS i",
        "ANALYZE t",
    )
    captured.capture()
    return [chr(i) for i in (*range(65, 91), *range(97, 123))]


def read_one_chunk(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk, then the reader dies."""

    def reach(name: str) -> None:
        if name == "read.after_high":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tidemark.backfill.range_reading.reach", reach)
        with pytest.raises(KeyboardInterrupt):
            captured.read()


@pytest.mark.some(2)
@pytest.mark.parametrize("statement", CHANGES_OF_ORDER)
def test_a_backfill_ends_where_its_key_gets_another_order(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    letters(captured)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    read_one_chunk(captured, monkeypatch)
    captured.execute(statement)
    captured.read()
    after = captured.again(backfill)
    assert (after.state, len(captured.chunks(backfill))) == ("closed", 1)
    assert "the order of its key is another one since the backfill began" in (after.state_reason or "")


@pytest.mark.some(2)
@pytest.mark.parametrize("statement", CHANGES_OF_ORDER)
@pytest.mark.parametrize("named", either(named=True, all_tables=False))
def test_a_backfill_whose_key_got_another_order_is_begun_anew(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, statement: str, named: bool
) -> None:
    every = letters(captured)
    (first,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    read_one_chunk(captured, monkeypatch)
    captured.execute(statement)
    (second,) = captured.plan(**({"tables": ["public.t"]} if named else {}), chunk_rows=10, readers=1)
    assert second.backfill != first.backfill
    assert "the order of its key" in (captured.again(first).state_reason or "")
    captured.read()
    assert sorted(row["k"] for row in captured.rows(second)) == sorted(every)
    assert all(key_range.done for key_range in captured.ranges(second))


def test_another_version_of_the_keys_collation_is_another_order(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters(captured)
    captured.execute(ANOTHER_COLLATION)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    read_one_chunk(captured, monkeypatch)
    version = captured.one("SELECT collversion FROM pg_collation WHERE collname = 'pg_c_utf8'")
    assert version
    captured.ledger_query(
        "UPDATE tidemark.backfills SET key_order = "
        f"""replace(key_order::text, '"{version}"', '"that of another host"')::jsonb RETURNING 1"""
    )
    captured.read()
    assert captured.again(backfill).state == "closed"


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ALTER n TYPE bigint",
        "REINDEX TABLE t",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)",
        "CREATE UNIQUE INDEX again ON t (n); ALTER TABLE t REPLICA IDENTITY USING INDEX again",
    ],
)
def test_a_key_of_the_same_order_is_read_on(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    read_one_chunk(captured, monkeypatch)
    captured.execute(statement)
    (second,) = captured.plan(tables=["public.t"])
    assert second.backfill == backfill.backfill
    captured.read()
    assert ns(captured, backfill) == list(range(1, 101))
