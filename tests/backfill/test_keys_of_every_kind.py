"""Any key is walked in its index's order: every row exactly once over all ranges, whatever the size of a chunk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.pipeline import Pipeline
from tidemark.backfill import read_sessions
from tidemark.backfill.chunk_reading import only_table
from tidemark.backfill.chunk_size import GROWTH
from tidemark.names import TableName
from tidemark.source.catalogue import catalog
from tidemark.source.rows import key_ranges, scattered_rows
from tidemark.source.rows.key_ranges import Key, TableToRead
from tidemark.staging.batch_writer import read_table

ROWS = 2000
# Keys that cannot be compared as rows.
IN_STEPS = ("mixed ascending and descending", "operator classes that descend")

LETTERS = "(ARRAY['a', 'B', 'ä', 'Z', 'z-', 'é', '', 'ß'])[1 + i % 8] || i / 8"
BY_INDEX = "ALTER TABLE t REPLICA IDENTITY USING INDEX k"

# An operator class that orders texts as no collation does. Its functions name their schema: sessions of Tidemark look
# for names in pg_catalog alone, as PostgreSQL itself does while it builds an index (since 17).
BY_LENGTH = (
    "".join(
        f"""CREATE FUNCTION {name}(text, text) RETURNS bool IMMUTABLE STRICT LANGUAGE sql AS
        'SELECT (length($1), $1 COLLATE "C") {operator} (length($2), $2 COLLATE "C")';
        CREATE OPERATOR {operator}# (FUNCTION = {name}, LEFTARG = text, RIGHTARG = text);"""
        for name, operator in (("shorter", "<"), ("not_longer", "<="), ("not_shorter", ">="), ("longer", ">"))
    )
    + """CREATE FUNCTION by_length(text, text) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS
    'SELECT CASE WHEN public.shorter($1, $2) THEN -1 WHEN public.longer($1, $2) THEN 1 ELSE 0 END';
    CREATE OPERATOR CLASS by_length FOR TYPE text USING btree AS OPERATOR 1 <#, OPERATOR 2 <=#, OPERATOR 3 =,
    OPERATOR 4 >=#, OPERATOR 5 >#, FUNCTION 1 by_length(text, text);"""
)

# Definition of the table t, and its rows as expressions in i; n is i, to tell them apart.
KEYS = {
    "integer": ("CREATE TABLE t (n int PRIMARY KEY)", "i"),
    "composite": ("CREATE TABLE t (n int, a int, b text, PRIMARY KEY (a, b, n))", "i, i % 7, 'b' || i % 30"),
    "composite in another order": ("CREATE TABLE t (n int, a int, b int, PRIMARY KEY (b, a, n))", "i, i % 5, i % 3"),
    "mixed ascending and descending": (
        "CREATE TABLE t (n int NOT NULL, a int NOT NULL, b text NOT NULL);"
        f"CREATE UNIQUE INDEX k ON t (a, b DESC, n DESC NULLS LAST); {BY_INDEX}",
        "i, i % 6, 'b' || i % 11",
    ),
    "descending": (f"CREATE TABLE t (n int NOT NULL); CREATE UNIQUE INDEX k ON t (n DESC); {BY_INDEX}", "i"),
    "uuid": ("CREATE TABLE t (n int, u uuid PRIMARY KEY)", "i, md5(i::text)::uuid"),
    "an index with another collation than the column": (
        'CREATE TABLE t (n int, s text COLLATE "C" NOT NULL);'
        f'CREATE UNIQUE INDEX k ON t (s COLLATE "POSIX"); {BY_INDEX}',
        f"i, {LETTERS}",
    ),
    "text_pattern_ops": (
        f"CREATE TABLE t (n int, s text NOT NULL); CREATE UNIQUE INDEX k ON t (s text_pattern_ops DESC); {BY_INDEX}",
        f"i, {LETTERS}",
    ),
    "text in an order of its own, the longest last": (
        f"{BY_LENGTH} CREATE TABLE t (n int, s text NOT NULL); CREATE UNIQUE INDEX k ON t (s by_length); {BY_INDEX}",
        f"i, {LETTERS} || repeat('x', i % 11)",
    ),
    "varchar and bpchar": (
        "CREATE TABLE t (n int, v varchar(20), c char(6), PRIMARY KEY (v, c))",
        "i, 'it''s \\' || i % 40, (i / 40)::text",
    ),
    "timestamps": (
        "CREATE TABLE t (n int, at timestamptz, day date, PRIMARY KEY (day, at))",
        "i, '2024-01-01'::timestamptz + i * interval '1.000001 s', '2024-01-01'::date + i % 3",
    ),
    "double": (
        "CREATE TABLE t (n int, x numeric(20, 3), y double precision, PRIMARY KEY (x, y))",
        "i, (i % 50) / 7.0, CASE WHEN i % 50 = i THEN 'NaN' ELSE i / 3.0 END",
    ),
    "full with a primary key": (
        "CREATE TABLE t (n int, a int, PRIMARY KEY (a, n)); ALTER TABLE t REPLICA IDENTITY FULL",
        "i, i % 9",
    ),
    "an enum, a boolean and bytes": (
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');"
        "CREATE TABLE t (n int, m mood, o bool, y bytea, PRIMARY KEY (m, o, y))",
        "i, (ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood, i % 2 = 0, int4send(i)",
    ),
    "a domain and an array": (
        "CREATE DOMAIN positive AS int CHECK (value > 0);"
        "CREATE TABLE t (n int, d positive, r text[], PRIMARY KEY (d, r))",
        """i, 1 + i % 20, ARRAY[i % 3, i]::text[] || '"'::text""",
    ),
    "partitioned": (
        "CREATE TABLE t (n int, day int, PRIMARY KEY (day, n)) PARTITION BY LIST (day);"
        "CREATE TABLE t0 PARTITION OF t FOR VALUES IN (0, 3);"
        "CREATE TABLE t1 (n int NOT NULL, gone int, day int NOT NULL); ALTER TABLE t1 DROP gone;"
        "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES IN (1, 2)",
        "i, i % 4",
    ),
    "names that need quotes": (
        """CREATE TABLE t (n int, "Größe ""%s {}" int, "select" text, PRIMARY KEY ("select", "Größe ""%s {}"))""",
        "i, i, i % 5",
    ),
    "names of outputs": (
        'CREATE TABLE t (n int, "case" int, value interval, value_ int, PRIMARY KEY ("case", value, value_))',
        "i, i / 2, make_interval(hours => i % 30), i",
    ),
}
# A key with a class that falls for each column. PostgreSQL may sort the rows of one of its steps.
FALLING = {
    "operator classes that descend": (
        "CREATE FUNCTION falling(int, int) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS"
        " 'SELECT CASE WHEN $1 > $2 THEN -1 WHEN $1 < $2 THEN 1 ELSE 0 END';"
        "CREATE OPERATOR CLASS falling FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =,"
        " OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 falling(int, int); CREATE TABLE t (n int NOT NULL, a int NOT NULL);"
        f"CREATE UNIQUE INDEX k ON t (a falling, n falling); {BY_INDEX}",
        "i, i % 6",
    ),
}


def fill(captured: Pipeline, kind: str, rows: int) -> None:
    definition, values = (KEYS | FALLING)[kind]
    captured.execute(definition, f"INSERT INTO t SELECT {values} FROM generate_series(0, {rows - 1}) AS i", "ANALYZE t")


@pytest.fixture
def by_pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PostgreSQL expects every chunk to cost less by pages. Returns the limits of the chunks that were read so."""
    limits: list[int] = []
    end_query = scattered_rows.end_query

    def noted(table: TableToRead, position: Key | None, upper: Key | None, limit: int) -> sql.Composed:
        limits.append(limit)
        return end_query(table, position, upper, limit)

    monkeypatch.setattr(scattered_rows, "end_query", noted)
    monkeypatch.setattr(scattered_rows, "is_cheaper", lambda *_: True)
    return limits


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", KEYS | FALLING)
def test_every_row_is_read_once_over_all_ranges(captured_on_each: Pipeline, kind: str) -> None:
    read_over_all_ranges(captured_on_each, kind)


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", KEYS | FALLING)
def test_every_row_is_read_once_page_by_page(captured: Pipeline, kind: str, by_pages: list[int]) -> None:
    read_over_all_ranges(captured, kind)
    assert bool(by_pages) == (kind not in IN_STEPS)


def read_over_all_ranges(captured: Pipeline, kind: str) -> None:
    fill(captured, kind, ROWS)
    captured.capture()
    chunk_rows = random.Random(kind).choice([37, 100, 333, 1000])
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=chunk_rows, readers=1)
    result = captured.read()
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(ROWS))
    ranges = captured.ranges(backfill)
    assert len(ranges) == min(4, ROWS // chunk_rows)
    assert all(r.done for r in ranges)
    assert (ranges[0].lower, ranges[-1].upper) == (None, None)
    assert [r.upper for r in ranges[:-1]] == [r.lower for r in ranges[1:]]
    assert result.rows == ROWS
    assert result.ranges == len(ranges)
    assert result.chunks == len(captured.chunks(backfill)) > len(ranges)


@contextmanager
def read_by_index(
    captured: Pipeline, of_role: Sequence[str] = ()
) -> Iterator[tuple[psycopg.Connection[Any], TableToRead]]:
    """A session that reads chunks of t, with settings of its role."""
    with read_sessions.connect(captured.source, captured.config) as connection, connection.transaction():
        for setting in (*of_role, *read_sessions.INDEX_ALONE):
            connection.execute(setting.encode())
        yield connection, to_read(captured, connection)


def to_read(captured: Pipeline, connection: psycopg.Connection[object], name: str = "t") -> TableToRead:
    config = only_table(captured.config, TableName("public", name))
    assert config is not None
    (table,) = catalog.captured_tables(connection, config)
    return key_ranges.table_to_read(connection, table)


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", KEYS)
def test_every_part_of_a_chunk_is_one_stretch_of_the_index(captured: Pipeline, kind: str) -> None:
    fill(captured, kind, 20_000)
    with read_by_index(captured) as (connection, table):
        first, second, upper = key_ranges.sampled_bounds(connection, table, 4)
        for position, bound in ((first, second), (first, upper), (first, None), (None, upper), (None, None)):
            for equal in key_ranges.steps_after(table, position):
                query = key_ranges.chunk_query(table, position, bound, equal=equal, limit=500)
                plan = plan_of(connection, query)
                for node in ("-> Sort", "Incremental Sort", "Seq Scan", "Bitmap"):
                    assert node not in plan.replace("->  ", "-> "), plan
                assert not plan.startswith("Sort"), plan
                assert "Index" in plan, plan
                if position is not None:
                    assert "Index Cond" in plan, plan


@pytest.mark.parametrize(("kind", "is_scattered"), [("uuid", True), ("integer", False)])
def test_rows_that_lie_all_over_the_table_are_read_page_by_page(
    captured: Pipeline, kind: str, is_scattered: bool
) -> None:
    fill(captured, kind, 20_000)
    captured.execute("VACUUM ANALYZE t")
    with read_by_index(captured) as (connection, table):
        lower, upper = key_ranges.sampled_bounds(connection, table, 3)
        assert scattered_rows.is_cheaper(connection, table, lower, upper) == is_scattered
        connection.execute("SET LOCAL temp_file_limit = '1GB'")
        assert not scattered_rows.is_cheaper(connection, table, lower, upper)


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", KEYS | FALLING)
def test_a_chunk_is_found_in_the_index_alone_and_read_by_its_pages(captured: Pipeline, kind: str) -> None:
    fill(captured, kind, 20_000)
    captured.execute("VACUUM ANALYZE t")
    with read_by_index(captured) as (connection, table):
        lower, upper = key_ranges.sampled_bounds(connection, table, 3)
        if not scattered_rows.is_possible(table, lower, upper):
            assert kind in IN_STEPS
            return
        end = plan_of(connection, scattered_rows.end_query(table, lower, upper, 500))
        for setting in read_sessions.BY_PAGES:
            connection.execute(setting)
        rows = plan_of(connection, scattered_rows.rows_query(table, lower, upper))
    assert "Index Only Scan" in end, end
    assert "Bitmap Heap Scan" in rows, rows
    for plan in (end, rows):
        assert "Index Cond" in plan, plan
        assert "Filter" not in plan, plan


@pytest.mark.parametrize(("of_the_server", "of_the_reader"), [("4MB", "64MB"), ("1500kB", "64MB"), ("2GB", "2GB")])
def test_the_memory_for_the_bitmap_is_raised_and_never_lowered(
    captured: Pipeline, of_the_server: str, of_the_reader: str
) -> None:
    with captured.connection.transaction():
        captured.execute(f"SET LOCAL work_mem = '{of_the_server}'")
        captured.execute(*read_sessions.BY_PAGES)
        assert captured.query("SHOW work_mem") == [(of_the_reader,)]


def plan_of(connection: psycopg.Connection[Any], query: sql.Composed) -> str:
    return "\n".join(line for (line,) in connection.execute(sql.SQL("EXPLAIN {}").format(query)).fetchall())


def test_a_chunk_that_is_read_page_by_page_has_the_rows_between_its_bounds(
    captured: Pipeline, by_pages: list[int]
) -> None:
    fill(captured, "uuid", ROWS)
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    captured.read()
    in_order = [key for (key,) in captured.query("SELECT u::text FROM t ORDER BY u")]
    chunks = captured.chunks(backfill)
    assert chunks[0].rows == by_pages[0] == 10
    assert max(by_pages) > 10 * GROWTH
    assert len(chunks) == len(by_pages)
    for chunk in chunks:
        keys = [row["u"] for file in chunk.files for row in read_table(captured.store, file).to_pylist()]
        begins = 0 if chunk.lower is None else in_order.index(chunk.lower[0]) + 1
        ends = ROWS if chunk.upper is None else in_order.index(chunk.upper[0]) + 1
        assert keys == in_order[begins:ends]


def test_a_range_in_order_does_not_begin_with_the_size_of_one_by_pages(
    captured: Pipeline, by_pages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(captured, "uuid", ROWS)
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10, readers=1)
    monkeypatch.setattr(scattered_rows, "is_cheaper", lambda *_: not by_pages)
    captured.read()
    largest = {
        r.range: max(c.rows for c in captured.chunks(backfill) if c.range == r.range) for r in captured.ranges(backfill)
    }
    assert largest.pop(1) > 10 * GROWTH
    assert max(largest.values()) == 10 * GROWTH


def test_a_filter_is_applied_in_the_order_of_the_index(captured: Pipeline, by_pages: list[int]) -> None:
    fill(captured, "uuid", ROWS)
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"], row_filter="n < 200", chunk_rows=30, readers=1)
    captured.read()
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(200))
    assert by_pages == []


# PostgreSQL 18 takes the index all the same.
@pytest.mark.parametrize("captured_on_each", [16], indirect=True)
def test_settings_of_the_role_do_not_make_the_source_sort(captured_on_each: Pipeline) -> None:
    captured_on_each.execute(
        "CREATE TABLE t (u uuid PRIMARY KEY, n int) WITH (fillfactor = 10)",
        "INSERT INTO t SELECT md5(i::text)::uuid, i FROM generate_series(1, 20000) AS i",
        "VACUUM ANALYZE t",
    )
    with read_by_index(captured_on_each, ["SET LOCAL enable_indexscan = off"]) as (connection, table):
        plan = plan_of(connection, key_ranges.chunk_query(table, ("4" + "0" * 31,), None, equal=0, limit=15_000))
    assert "Index Scan" in plan, plan
    assert "->  Sort" not in plan, plan


def test_a_key_whose_index_has_no_order_is_read_as_a_whole_and_by_its_keys(captured: Pipeline) -> None:
    """A key without overlaps, from 18 on. Two ranges of it may overlap, and are two keys all the same."""
    captured.execute(
        "CREATE TABLE t (n int, id int4range, at daterange, PRIMARY KEY (id, at WITHOUT OVERLAPS))",
        "INSERT INTO t SELECT i, int4range(i % 2, 5), daterange('2026-01-01'::date + i / 2, '2026-01-02'::date + i / 2)"
        " FROM generate_series(0, 99) AS i",
        "ANALYZE t",
    )
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"], chunk_rows=10)
    captured.read()
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(100))
    assert [r.done for r in captured.ranges(backfill)] == [True]
    keys = ({"id": "[1,5)", "at": "[2026-01-01,2026-01-02)"},)
    (of_keys,) = captured.plan(tables=["public.t"], mode="keys", keys=keys, replace=True)
    captured.read()
    assert [row["n"] for row in captured.rows(of_keys)] == [1]
