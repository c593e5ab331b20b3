"""What a form may ask for, what it is refused with, and what is opened: ranges, keys, continued, replaced."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import psycopg
import pytest

from tests.support.pipeline import Pipeline
from tidemark.backfill import planning, range_planning
from tidemark.backfill.backfill_requests import RequestedTable, requested_tables
from tidemark.config import TableRule
from tidemark.errors import (
    BackfillIsOpen,
    BackfillIsRead,
    BackfillRefused,
    BackfillTablesUnknown,
    CaptureNotBegun,
    JoinHorizonBlocked,
    RowFilterInvalid,
)
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import leases
from tidemark.ledger.captured import backfill_marks, joins, merge_states
from tidemark.ledger.connection import open_ledger


def a_table(captured: Pipeline, rows: int = 100) -> None:
    captured.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        f"INSERT INTO orders SELECT i, 'v' || i FROM generate_series(1, {rows}) AS i",
        "ANALYZE orders",
    )
    captured.capture()


def test_without_a_capture_there_is_no_backfill(captured: Pipeline) -> None:
    captured.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(CaptureNotBegun, match="Run the capture DAG"):
        captured.plan(tables=["public.orders"])
    captured.capture()
    captured.execute("CREATE TABLE later (id int PRIMARY KEY)")
    with pytest.raises(CaptureNotBegun, match="later"):
        captured.plan(tables=["public.orders", "public.later"])
    assert captured.ledger_query("SELECT * FROM tidemark.backfills") == []


def test_a_slot_that_was_moved_needs_a_capture_run_first(captured: Pipeline) -> None:
    a_table(captured)
    captured.advance()
    with pytest.raises(CaptureNotBegun, match="beyond"):
        captured.plan(tables=["public.orders"])


def test_unknown_names_are_refused_with_the_nearest(captured: Pipeline) -> None:
    a_table(captured)
    with pytest.raises(BackfillTablesUnknown, match=r"'public\.order' \(did you mean 'public\.orders'\?\)"):
        captured.plan(tables=["public.order"])
    with pytest.raises(BackfillTablesUnknown, match=r"capture: 'public\.order'\. "):
        captured.plan(tables=["public.order", "public.orders"])
    with pytest.raises(BackfillTablesUnknown, match="'nonsense'"):
        captured.plan(tables=["public.orders", "nonsense"])


def test_names_are_those_of_the_pipeline_file(captured: Pipeline) -> None:
    captured.execute('CREATE TABLE "a.b *" (id int PRIMARY KEY)')
    a_table(captured)
    assert [b.table for b in captured.plan(tables=['public."a.b *"'])] == ['public."a.b *"']
    assert [b.table for b in captured.plan(tables=["public.*"], replace=True)] == [
        'public."a.b *"',
        "public.orders",
    ]


def test_planning_again_in_the_same_run_changes_nothing(captured: Pipeline) -> None:
    a_table(captured)
    first = captured.plan("one", tables=["public.orders"], chunk_rows=10)
    ranges = captured.ranges(first[0])
    assert len(ranges) == 8
    again = captured.plan("one", tables=["public.orders"], chunk_rows=10)
    assert [b.backfill for b in again] == [first[0].backfill]
    assert captured.ranges(again[0]) == ranges


@pytest.mark.parametrize("failpoint", ["plan.before_open", "plan.after_open"])
def test_a_plan_that_died_is_finished_by_its_next_try(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    captured.execute("CREATE TABLE a (id int PRIMARY KEY)")
    a_table(captured)

    def reach(name: str) -> None:
        if name == failpoint:
            raise KeyboardInterrupt

    monkeypatch.setattr("tidemark.backfill.planning.reach", reach)
    with pytest.raises(KeyboardInterrupt):
        captured.plan("one", tables=["public.*"])
    assert len(captured.ledger_query("SELECT * FROM tidemark.backfills")) == (failpoint == "plan.after_open")
    monkeypatch.undo()
    assert [b.table for b in captured.plan("one", tables=["public.*"])] == ["public.a", "public.orders"]
    assert len(captured.ledger_query("SELECT * FROM tidemark.backfills")) == 2


def test_an_open_backfill_is_gone_on_with(captured: Pipeline) -> None:
    a_table(captured)
    (first,) = captured.plan(tables=["public.orders"], chunk_rows=10, row_filter="id > 5")
    (second,) = captured.plan(tables=["public.orders"], row_filter="id > 5")
    assert (second.backfill, second.run_id, second.chunk_rows) == (first.backfill, captured.run_id, 10)


def test_another_filter_or_mode_is_refused_unless_it_replaces(captured: Pipeline) -> None:
    a_table(captured)
    (first,) = captured.plan(tables=["public.orders"])
    for request in ({"row_filter": "id > 5"}, {"mode": "exported_snapshot"}, {"mode": "keys", "keys": [["1"]]}):
        with pytest.raises(BackfillIsOpen, match=first.backfill):
            captured.plan(tables=["public.orders"], **request)
    (second,) = captured.plan(tables=["public.orders"], row_filter="id > 5", replace=True)
    assert captured.again(first).state == "closed"
    assert "replaced" in (captured.again(first).state_reason or "")
    assert (second.state, second.sweeps) == ("open", False)


def test_a_backfill_that_is_being_read_is_not_taken_away(captured: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    a_table(captured)
    (first,) = captured.plan(tables=["public.orders"])
    captured.reader_wait_s = 12
    (key_range,) = captured.ranges(first)
    with (
        leases.hold(captured.ledger, captured.config.pipeline, key_range.lease, "the reader"),
        pytest.raises(BackfillIsRead, match="the reader"),
    ):
        # Each look at this run's clock takes 5 s.
        captured.plan(tables=["public.orders"], clock=itertools.count(step=5).__next__)
    assert captured.again(first).run_id != captured.run_id
    line = r"Waiting for the backfill .* its reader the reader may .* ends at 20.* UTC \(7 s at most\)"
    assert re.search(line, caplog.text)


def test_one_that_nobody_read_for_long_is_closed(captured: Pipeline) -> None:
    a_table(captured)
    (first,) = captured.plan(tables=["public.orders"])
    captured.ledger_query("UPDATE tidemark.backfills SET active_at = active_at - interval '2 days' RETURNING 1")
    (second,) = captured.plan(tables=["public.orders"], row_filter="id > 1")
    assert captured.again(first).state == "closed"
    assert second.state == "open"


def test_transactions_older_than_the_capture_are_waited_for_and_named(
    captured: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    a_table(captured)
    captured.with_bounds(join_wait_s=1)
    captured.ledger_query("UPDATE tidemark.tables SET join_horizon = 2000000000 RETURNING 1")
    with psycopg.connect(captured.source, application_name="the writer") as writer:
        writer.execute("INSERT INTO orders VALUES (1000)")
        with pytest.raises(JoinHorizonBlocked, match=r"after 1 s .* \(the writer\), open for \d"):
            captured.plan(tables=["public.orders"])
    assert re.search(
        r"Waiting for transactions that are older than the join or the mark of .* \(the writer\)", caplog.text
    )
    assert captured.ledger_query("SELECT * FROM tidemark.backfills") == []


def test_a_table_that_waits_keeps_no_other_one_waiting(captured: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    captured.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    a_table(captured)
    captured.with_bounds(join_wait_s=1)
    captured.ledger_query(
        """UPDATE tidemark.tables SET join_horizon = 2000000000 WHERE "table" = 'public.orders' RETURNING 1"""
    )
    assert [one.table for one in captured.plan()] == ["public.other"]
    assert "A backfill of public.orders waits" in caplog.text
    with pytest.raises(JoinHorizonBlocked):
        captured.plan(tables=["public.orders", "public.other"])


@pytest.mark.parametrize(
    ("row_filter", "message"), [("id > 'v1 x'", "SQLSTATE 22P02"), ("v::int > 1", "at character 2 is ':'")]
)
def test_a_row_filter_is_tried_at_the_source(captured: Pipeline, row_filter: str, message: str) -> None:
    a_table(captured)
    with pytest.raises(RowFilterInvalid, match=re.escape(message)) as refused:
        captured.plan(tables=["public.orders"], row_filter=row_filter)
    assert "v1" not in str(refused.value)
    assert captured.one("SELECT count(*) FROM orders") == 100


def test_ranges_have_at_least_the_rows_of_a_chunk(captured: Pipeline) -> None:
    a_table(captured, rows=1000)
    for chunk_rows, readers, count in ((50_000, 2, 1), (400, 2, 2), (100, 1, 4), (100, 2, 8), (10, 16, 64)):
        (backfill,) = captured.plan(tables=["public.orders"], chunk_rows=chunk_rows, readers=readers, replace=True)
        ranges = captured.ranges(backfill)
        assert len(ranges) == count
        bounds = [int(r.upper[0]) for r in ranges[:-1] if r.upper]
        assert bounds == sorted(set(bounds))
        assert backfill.estimated_rows == 1000


def test_of_an_empty_table_no_rows_are_expected(captured: Pipeline) -> None:
    captured.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (9)",
    )
    captured.capture()
    for table in ("public.orders", "public.parted"):
        (backfill,) = captured.plan(tables=[table], replace=True)
        assert (backfill.estimated_rows, len(captured.ranges(backfill))) == (0, 1)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_chosen_keys_are_read_and_nothing_else(captured: Pipeline) -> None:
    captured.execute(
        "CREATE TABLE t (n int, at timestamptz, PRIMARY KEY (at, n))",
        "INSERT INTO t SELECT i, '2024-01-01'::timestamptz + i * interval '1 h' FROM generate_series(1, 3000) AS i",
    )
    captured.capture()
    keys: list[Any] = [("2024-01-01 02:00+01", "1"), {"n": 2, "at": "2024-01-01T02:00:00Z"}, ("2024-01-01 01:00Z", 1)]
    keys += [{"n": i, "at": "2020-01-01 00:00Z"} for i in range(2000)]
    (backfill,) = captured.plan(tables=["public.t"], mode="keys", keys=keys)
    assert [len(r.keys or ()) for r in captured.ranges(backfill)] == [1000, 1000, 2]
    assert (backfill.sweeps, backfill.estimated_rows) == (False, 2002)
    captured.read()
    assert sorted(row["n"] for row in captured.rows(backfill)) == [1, 2]
    (same,) = captured.plan(tables=["public.t"], mode="keys", keys=keys)
    assert same.backfill == backfill.backfill


@pytest.mark.parametrize(
    ("key", "written", "also_written"),
    [
        ("name numeric PRIMARY KEY", "{0}.5", "{0}.50"),
        ("name interval PRIMARY KEY", "P{0}D", "PT{1}H"),
        ("name numeric, number text, PRIMARY KEY (number, name)", "{0}.5", "{0}.50"),
    ],
)
def test_a_row_that_several_keys_find_is_read_once(
    captured: Pipeline, key: str, written: str, also_written: str
) -> None:
    """PostgreSQL has an equality of its own. Two ranges that read one row would both bring it, unknown to each other;
    and the target may have it under any of these keys, so none is forgotten."""
    captured.execute(f"CREATE TABLE t ({key})")
    captured.capture()
    besides = {"number": "the same"} if "number" in key else {}
    names, others = ([name.format(i, 24 * i) for i in range(2, 1202)] for name in (written, also_written))
    values = ", ".join(str((*besides.values(), name)).replace(",)", ")") for name in names)
    captured.execute(f"INSERT INTO t ({', '.join([*besides, 'name'])}) VALUES {values}")
    keys = [{**besides, "name": name} for name in (*others, *names)]
    (backfill,) = captured.plan(tables=["public.t"], mode="keys", keys=keys)
    assert backfill.estimated_rows == 1200
    ranges = captured.ranges(backfill)
    assert {one for r in ranges for one in r.keys or ()} == {tuple(one.values()) for one in keys}
    assert max(len(r.keys or ()) for r in ranges) == range_planning.KEYS_PER_RANGE
    captured.read()
    assert sorted(row["name"] for row in captured.rows(backfill)) == sorted(names)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "mode keys needs keys"),
        ([["1"], ["a secret"]], "key 2 is no value of id (integer)"),
        ([["1", "2"]], "key 1 must have 1 value"),
        ([{"id": 1, "v": "x"}], "key 1 must have the columns id"),
        ([[None]], "key 1 must hold texts or numbers"),
    ],
)
def test_keys_that_are_none_are_refused_by_number(captured: Pipeline, keys: list[Any], message: str) -> None:
    a_table(captured)
    with pytest.raises(BackfillRefused, match=re.escape(message)) as refused:
        captured.plan(tables=["public.orders"], mode="keys", keys=keys)
    assert "secret" not in str(refused.value)


def test_what_has_no_key_is_read_as_a_whole_or_not_at_all(captured: Pipeline) -> None:
    captured.config = dataclasses.replace(captured.config, tables=(TableRule("public.log"),))
    captured.execute("CREATE TABLE log (n int)", "INSERT INTO log VALUES (1), (1)")
    captured.capture()
    for request in ({"row_filter": "n > 0"}, {"mode": "keys", "keys": [["1"]]}):
        with pytest.raises(BackfillRefused, match="no key"):
            captured.plan(tables=["public.log"], **request)
    (backfill,) = captured.plan(tables=["public.log"])
    captured.read()
    assert [row["n"] for row in captured.rows(backfill)] == [1, 1]
    captured.ledger_query("UPDATE tidemark.chunks SET claimed_lsn = '0/1' RETURNING 1")
    captured.ledger_query("UPDATE tidemark.backfills SET state = 'applied' RETURNING 1")
    with pytest.raises(BackfillRefused, match="make every row count as new"):
        captured.plan(tables=["public.log"])
    assert len(captured.plan(tables=["public.log"], replace=True)) == 1


def test_a_table_that_is_not_merged_is_refused_by_name(captured: Pipeline) -> None:
    """Or all tasks but the last would be green, and that one would wait for a merge that never comes."""
    a_table(captured)
    with open_ledger(captured.ledger, captured.config.pipeline) as connection:
        merge_states.park(connection, "public.orders", ErrorRecord("X", "FIX_TARGET", ""))
        with pytest.raises(BackfillRefused, match=r"it is parked \(X\), .* first end its park"):
            captured.plan(tables=["public.orders"])
        merge_states.unpark(connection, "public.orders")
        merge_states.pause(connection, "public.orders", "anna")
        with pytest.raises(BackfillRefused, match=r"it is paused, .* first resume it"):
            captured.plan(tables=["public.orders"])
        merge_states.resume(connection, "public.orders")
    assert len(captured.plan(tables=["public.orders"])) == 1


def test_after_unpark_anew_a_capture_run_comes_first_and_that_is_said(
    captured: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    a_table(captured)
    captured.plan(tables=["public.orders"])
    with open_ledger(captured.ledger, captured.config.pipeline) as connection:
        merge_states.park(connection, "public.orders", ErrorRecord("X", "BACKFILL", ""))
        assert captured.plan() == []
        assert "public.orders needs a backfill and is left out: it is parked" in caplog.text
        joins.restart(connection, "public.orders")
    assert requested_tables(captured.task()) == []
    with pytest.raises(
        CaptureNotBegun, match=r"A backfill of public\.orders cannot begin .* begins anew, .* Run the capture"
    ):
        captured.plan()

    captured.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    captured.capture()
    captured.ledger_query("""UPDATE tidemark.tables SET join_horizon = NULL WHERE "table" LIKE '%orders' RETURNING 1""")
    assert [one.table for one in captured.plan()] == ["public.other"]
    assert "A backfill of public.orders cannot begin" in caplog.text


# --- what is wanted ---------------------------------------------------------------------------------------------------


def test_a_form_without_tables_takes_what_is_wanted(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.execute("CREATE TABLE holes (id int PRIMARY KEY)", "INSERT INTO holes VALUES (1), (2)")
    captured.execute("CREATE TABLE log (n int)")
    a_table(captured)
    wanted_tables = [
        RequestedTable("public.orders", "chunks", (), "existing rows"),
        RequestedTable("public.holes", "keys", (("2",),), "holes"),
        RequestedTable("public.gone", "chunks", (), "it was there once"),
    ]
    monkeypatch.setattr("tidemark.backfill.backfill_tables.requested_tables", lambda run: wanted_tables)
    first = captured.plan()
    assert [(b.table, b.mode, b.sweeps) for b in first] == [
        ("public.holes", "keys", False),
        ("public.orders", "chunks", True),
    ]
    captured.read()
    assert [row["id"] for row in captured.rows(first[0])] == [2]
    # An open one is continued, whatever it reads.
    assert [b.backfill for b in captured.plan()] == [b.backfill for b in first]
    with pytest.raises(BackfillRefused, match="that the form names"):
        captured.plan(row_filter="id > 1")


def test_what_the_dead_were_reading_is_waited_for(captured: Pipeline) -> None:
    a_table(captured)
    (first,) = captured.plan()
    (key_range,) = captured.ranges(first)
    with leases.hold(captured.ledger, captured.config.pipeline, key_range.lease, "the dead"):
        assert captured.plan() == []
    assert [b.backfill for b in captured.plan()] == [first.backfill]
    captured.read()
    assert captured.plan() == []


@pytest.mark.parametrize("mode", ["chunks", "keys"])
@pytest.mark.parametrize("looked_at_first", [True, False])
def test_a_backfill_that_ends_while_it_is_looked_at_is_not_begun_anew(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, mode: str, looked_at_first: bool
) -> None:
    a_table(captured)
    (first,) = captured.plan(tables=["public.orders"], mode=mode, **({"keys": [["1"]]} if mode == "keys" else {}))
    open_of = planning.backfills.open_of

    def ends(*_: Any) -> None:
        captured.ledger_query("UPDATE tidemark.backfills SET state = 'applied' RETURNING 1")

    if looked_at_first:
        monkeypatch.setattr(planning._BackfillPlanner, "_await_readers", ends)
    else:
        monkeypatch.setattr(planning.backfills, "open_of", lambda *given: ends() or open_of(*given))
    # Nobody named the table: its backfill was all that asked for this one.
    assert captured.plan() == []
    assert captured.ledger_query("SELECT backfill FROM tidemark.backfills") == [(first.backfill,)]


def test_a_table_marked_for_a_column_has_that_and_the_key_read_again(captured: Pipeline) -> None:
    a_table(captured)
    captured.execute("ALTER TABLE orders ADD COLUMN seen timestamptz DEFAULT clock_timestamp()")
    captured.drain()
    with captured.ledger_connection() as ledger:
        backfill_marks.clear(ledger, "public.orders")  # as after a first load
    captured.execute("ALTER TABLE orders ADD COLUMN number bigserial")
    captured.drain()
    (one,) = requested_tables(captured.task())
    assert one.columns == (4,)
    (backfill,) = captured.plan()
    assert (backfill.columns, backfill.sweeps, backfill.whole_table) == ((4,), False, False)
    captured.read()
    assert {frozenset(row) for row in captured.rows(backfill)} == {frozenset({"id", "number", "_text"})}
    assert {row["id"]: row["number"] for row in captured.rows(backfill)} == {n: n for n in range(1, 101)}
    with pytest.raises(BackfillIsOpen, match="other columns"):
        captured.plan("another", tables=["public.orders"], columns=("v",))
    (named,) = captured.plan("named", tables=["public.orders"], columns=("v", "seen"), replace=True)
    assert named.columns == (2, 3)
    with pytest.raises(BackfillRefused, match="no column nothing"):
        captured.plan("wrong", tables=["public.orders"], columns=("nothing",), replace=True)


def test_without_its_key_or_its_columns_a_table_is_read_as_a_whole(captured: Pipeline) -> None:
    captured.execute("CREATE TABLE bag (n int)", "ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES (1)")
    a_table(captured)
    with captured.ledger_connection() as ledger:
        for table in ("public.bag", "public.orders"):
            backfill_marks.clear(ledger, table)
            backfill_marks.mark(ledger, table, "source_changed", "of a test", (1,) if "bag" in table else (9,))
    assert [b.columns for b in captured.plan()] == [None, None]
    with pytest.raises(BackfillRefused, match="read as a whole"):
        captured.plan("named", tables=["public.bag"], columns=("n",), replace=True)


def test_where_the_key_may_be_another_one_all_is_read(captured: Pipeline) -> None:
    """What current has under the old one is found by what the source lacks."""
    a_table(captured)
    with captured.ledger_connection() as ledger:
        backfill_marks.clear(ledger, "public.orders")
        backfill_marks.mark(ledger, "public.orders", "source_changed", "of a test", (1, 2))
    (backfill,) = captured.plan()
    assert (backfill.columns, backfill.sweeps, backfill.whole_table) == (None, True, True)
    with pytest.raises(BackfillRefused, match="belongs to its key"):
        captured.plan("named", tables=["public.orders"], columns=("id", "v"), replace=True)
