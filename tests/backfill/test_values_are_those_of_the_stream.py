"""A row that a chunk reads is the row that the stream brought: every type, NULLs, masks, what is published and what
is not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.golden.test_values_against_postgres import CASES, DDL, UNFIT
from tests.support import servers
from tests.support.pipeline import Pipeline
from tidemark.config import TableRule
from tidemark.source.rows import scattered_rows

METADATA = {"_generation", "_commit_lsn", "_ordinal", "_xid", "_committed_at", "_op", "_old_key", "_unchanged", "_old"}


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return [comparable(one) for one in value] if isinstance(value, list) else value


def values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: comparable(value) for name, value in row.items() if name not in METADATA}


def both(captured: Pipeline, table: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the stream brought of the table, which was filled after the capture began, and what a chunk reads."""
    captured.drain()
    (backfill,) = captured.plan(tables=[table])
    captured.read()
    streamed = [values(row) for row in captured.staged(table)]
    read = [values(row) for row in captured.rows(backfill)]
    assert read
    (chunk,) = captured.chunks(backfill)
    counts: dict[str, int] = {}
    for manifest in captured.manifests():
        for staged_table in manifest.tables:
            for column, count in staged_table.converted.items() if staged_table.table == table else ():
                counts[column] = counts.get(column, 0) + count
    assert chunk.converted == counts
    return streamed, read


@pytest.mark.parametrize("captured_on_each", servers.ANY_WITH_VECTOR, indirect=True)
def test_values_of_every_type(captured_on_each: Pipeline) -> None:
    captured = captured_on_each
    columns = [f"c{number} {type_}" for number, type_ in enumerate(CASES)]
    captured.execute(DDL, f"CREATE TABLE t (n int PRIMARY KEY, {', '.join(columns)})")
    captured.capture()
    texts = [[*column, *(text for text, _ in UNFIT.get(type_, []))] for type_, (_, column) in CASES.items()]
    for n in range(max(map(len, texts)) + 1):
        row = [column[n] if n < len(column) else None for column in texts]
        marks = ", ".join(f"%s::{type_}" for type_ in CASES)
        captured.connection.execute(f"INSERT INTO t VALUES ({n}, {marks})".encode(), row)
    streamed, read = both(captured, "public.t")
    assert read == streamed
    assert sum(row["_text"] is not None for row in read) >= 4


def test_a_composite_of_nulls_is_a_value(captured: Pipeline) -> None:
    captured.execute("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (n int PRIMARY KEY, p pair)")
    captured.capture()
    captured.execute("INSERT INTO t VALUES (1, ROW(NULL, NULL)), (2, NULL), (3, ROW(1, NULL))")
    streamed, read = both(captured, "public.t")
    assert read == streamed
    assert [row["p"] for row in read] == ["(,)", None, "(1,)"]


def test_masked_left_out_and_unpublished_columns(captured: Pipeline) -> None:
    rule = TableRule("public.t", leave_out=("secret",), mask={"mail": "sha256", "phone": "null"}, target={"x": "text"})
    captured.config = dataclasses.replace(captured.config, tables=(rule,), manage_publication=False)
    captured.execute(
        "CREATE TABLE t (n int PRIMARY KEY, gone int, mail text, secret text, phone text, x numeric(5, 2), hidden int,"
        " twice int GENERATED ALWAYS AS (n * 2) STORED)",
        "ALTER TABLE t DROP gone",
        f"CREATE PUBLICATION {captured.config.publication} FOR TABLE t (n, mail, secret, phone, x)"
        " WITH (publish_via_partition_root)",
    )
    captured.capture()
    captured.execute("INSERT INTO t SELECT i, 'm' || i, 's', 'p', i, i FROM generate_series(1, 5) AS i")
    streamed, read = both(captured, "public.t")
    assert read == streamed
    assert sorted(read[0]) == ["_text", "mail", "n", "phone", "x"]
    assert (read[0]["phone"], read[0]["x"], len(read[0]["mail"])) == (None, "1.00", 64)
    (version,) = captured.ledger_query("SELECT version, streamed FROM tidemark.schema_versions")
    assert version == (1, True)


def test_generated_columns_are_read_where_they_are_published(captured_on_each: Pipeline) -> None:
    captured = captured_on_each
    captured.execute("CREATE TABLE t (n int PRIMARY KEY, twice int GENERATED ALWAYS AS (n * 2) STORED)")
    captured.capture()
    captured.execute("INSERT INTO t VALUES (1), (2)")
    streamed, read = both(captured, "public.t")
    assert read == streamed
    published = captured.connection.info.server_version >= 180000
    assert ("twice" in read[0]) == published


def test_the_publications_row_filter_and_the_forms(captured: Pipeline) -> None:
    captured.config = dataclasses.replace(captured.config, manage_publication=False)
    captured.execute(
        "CREATE TABLE t (n int PRIMARY KEY, open bool)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {captured.config.publication} FOR TABLE t WHERE (open) WITH (publish_via_partition_root)",
        "INSERT INTO t SELECT i, CASE i % 3 WHEN 0 THEN true WHEN 1 THEN false END FROM generate_series(1, 30) AS i",
    )
    captured.capture()
    (backfill,) = captured.plan(tables=["public.t"], row_filter="t.n < 20")
    captured.read()
    assert [row["n"] for row in captured.rows(backfill)] == [3, 6, 9, 12, 15, 18]
    assert not backfill.sweeps


def test_a_column_that_the_stream_does_not_know_yet_is_a_version_of_its_own(captured: Pipeline) -> None:
    captured.execute("CREATE TABLE t (n int PRIMARY KEY)")
    captured.capture()
    captured.execute("INSERT INTO t VALUES (1)")
    captured.drain()
    captured.execute("INSERT INTO t VALUES (2)", "ALTER TABLE t ADD added text")
    (backfill,) = captured.plan(tables=["public.t"])
    captured.read()
    assert [(row["n"], row["added"]) for row in captured.rows(backfill)] == [(1, None), (2, None)]
    (chunk,) = captured.chunks(backfill)
    assert [file.schema_version for file in chunk.files] == [2]
    captured.drain()
    assert captured.table_row("public.t").life.merge == "merging"


@pytest.fixture
def in_sql_ascii(captured: Pipeline) -> Iterator[Pipeline]:
    """In a database of the encoding SQL_ASCII, whose texts may have any bytes."""
    name = psycopg.conninfo.conninfo_to_dict(captured.source)["dbname"]
    captured.execute(f"CREATE DATABASE {name}_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    captured.source = captured.source.replace(f"dbname={name}", f"dbname={name}_ascii")
    whole = captured.connection
    try:
        with psycopg.connect(captured.source, autocommit=True, client_encoding="utf8") as captured.connection:
            yield captured
            captured.drop_slot()
    finally:
        captured.connection = whole
        captured.execute(f"DROP DATABASE {name}_ascii WITH (FORCE)")


def test_bytes_that_are_no_utf8_are_read_as_the_stream_sends_them(in_sql_ascii: Pipeline) -> None:
    in_sql_ascii.execute("CREATE TABLE t (n int PRIMARY KEY, v text, w varchar)")
    in_sql_ascii.capture()
    in_sql_ascii.execute("INSERT INTO t VALUES (1, E'a\\xffb', 'é'), (2, 'é', E'\\x80')")
    streamed, read = both(in_sql_ascii, "public.t")
    assert read == streamed
    assert [row["_text"] for row in read] == [[("v", "a\\xffb")], [("w", "\\x80")]]


def test_a_key_that_is_no_utf8_parks_its_table(in_sql_ascii: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between bounds that are, where a query for the end of a chunk would fail on it."""
    monkeypatch.setattr(scattered_rows, "is_cheaper", lambda *_: True)
    key = "lpad(i::text, 3, '0') || CASE WHEN i % 25 = 0 THEN '' ELSE E'\\xff' END"
    in_sql_ascii.execute(
        "CREATE TABLE t (k text PRIMARY KEY)", f"INSERT INTO t SELECT {key} FROM generate_series(1, 100) AS i"
    )
    in_sql_ascii.capture()
    (backfill,) = in_sql_ascii.plan(tables=["public.t"], chunk_rows=10, readers=1)
    in_sql_ascii.read()
    assert len(in_sql_ascii.ranges(backfill)) == 4
    row = in_sql_ascii.table_row("public.t")
    assert row.error is not None
    assert (row.life.merge, row.error.kind) == ("parked", "KeyValueUnfit")
