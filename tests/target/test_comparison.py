"""The judge itself: equal rows of every type count as equal, and every kind of difference is found."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from sandbox.checks.comparison import Comparison, compare

COLUMNS = {  # PostgreSQL -> Delta
    "b": ("boolean", "boolean"),
    "f": ("real", "float"),
    "d": ("double precision", "double"),
    "n": ("numeric(10,2)", "decimal(10,2)"),
    "u": ("numeric", "decimal(38,2)"),
    "x": ("bytea", "binary"),
    "dt": ("date", "date"),
    "ts": ("timestamp", "timestamp_ntz"),
    "tz": ("timestamptz", "timestamp"),
    "a": ("integer[]", "array<int>"),
    "t": ("text[]", "array<string>"),
    "tza": ("timestamptz[]", "array<timestamp>"),
    "iv": ("interval", "string"),
    "bp": ("char(5)", "string"),
}
SOURCE_ROWS = r"""
INSERT INTO t VALUES
(1, true, 0.1, 'NaN', 1.10, 1.50, '\xdead', '2024-01-02', '2024-03-10 02:30:00.5', '2024-01-01 00:00:00.123456+02',
 '{1,NULL,3}', '{"a\"b",NULL,"NULL",[x,"",a b}', '{2024-01-01 00:00:00+00}', '1 mon 2 days', 'ab'),
(2, false, 'Infinity', 0, 'NaN', 1e40, '\x', 'infinity', '-infinity', '10000-01-01',
 '[2:3]={1,2}', '{}', '{infinity}', NULL, ''),
(3, NULL, 3.4028235e38, 1e300, 99999999.99, NULL, NULL, '0044-03-15 BC', '0001-01-01', '9999-12-31 23:59:59.999999+00',
 '{{1}}', NULL, NULL, NULL, NULL)
"""
CURRENT_ROWS = r"""
(1, true, cast(0.1 AS float), double('NaN'), 1.10, 1.5, X'dead', date'2024-01-02',
 timestamp_ntz'2024-03-10 02:30:00.5', timestamp'2024-01-01 00:00:00.123456+02:00',
 array(1, null, 3), array('a"b', null, 'NULL', '[x', '', 'a b'), array(timestamp'2024-01-01 00:00:00Z'),
 'P1M2D', 'ab   ', 1, null),
(2, false, float('Infinity'), 0.0D, null, null, X'', date'9999-12-31', timestamp_ntz'0001-01-01 00:00:00',
 timestamp'9999-12-31 23:59:59.999999Z', null, array(), array(timestamp'9999-12-31 23:59:59.999999Z'), null, '     ',
 1, null),
(3, null, float('3.4028235e38'), 1e300D, 99999999.99, null, null, date'0001-01-01',
 timestamp_ntz'0001-01-01 00:00:00', timestamp'9999-12-31 23:59:59.999999Z', null, null, null, null, null, 1, null)
"""


class Tables:
    """One source table and its `current`, written by hand: neither drain nor merge is asked."""

    def __init__(self, spark: SparkSession, source: str, lake: Path) -> None:
        self.spark, self.source, self.lake = spark, source, lake
        self.path = lake / "p" / "current" / "public" / "t"

    def at_source(self, *statements: str) -> None:
        with psycopg.connect(self.source) as connection:
            for statement in statements:
                connection.execute(statement)

    def in_current(self, columns: str, rows: str) -> None:
        metadata = "_commit_lsn bigint, _committed_at timestamp"
        self.spark.sql(f"CREATE TABLE delta.`{self.path}` ({columns}, {metadata}) USING delta")
        self.spark.sql(f"INSERT INTO delta.`{self.path}` VALUES {rows}")

    def compared(self) -> Comparison:
        return compare(self.spark, source=self.source, lake=str(self.lake), pipeline="p", table="public.t")


@pytest.fixture
def tables(spark: SparkSession, source: str, tmp_path: Path) -> Tables:
    return Tables(spark, source, tmp_path)


@pytest.fixture(scope="module")
def current_of_every_type(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that no test alters."""
    lake = tmp_path_factory.mktemp("comparison")
    columns = ", ".join(f"{name} {type_}" for name, (_, type_) in COLUMNS.items())
    Tables(spark, "", lake).in_current(f"id int, {columns}", CURRENT_ROWS)
    return lake


@pytest.fixture
def every_type(spark: SparkSession, source: str, current_of_every_type: Path) -> Tables:
    tables = Tables(spark, source, current_of_every_type)
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in COLUMNS.items())
    tables.at_source(f"CREATE TABLE t (id int PRIMARY KEY, {columns})", SOURCE_ROWS)
    return tables


def test_equal_rows_of_every_type_are_equal_whatever_the_time_zone(every_type: Tables) -> None:
    comparison = every_type.compared()
    assert (comparison.source_rows, comparison.current_rows, comparison.examples) == (3, 3, ())
    zone = every_type.spark.conf.get("spark.sql.session.timeZone")
    every_type.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert every_type.compared().equal
    finally:
        every_type.spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("b", "false"),
        ("f", "0.2"),
        ("d", "1"),
        ("n", "1.11"),
        ("u", "1.51"),
        ("x", r"'\xdeae'"),
        ("dt", "'2024-01-03'"),
        ("ts", "'2024-03-10 02:30:00.500001'"),
        ("tz", "'2024-01-01 00:00:00.123457+02'"),
        ("a", "'{1,2,3}'"),
        ("t", """'{"a\\"b",NULL,NULL,[x,"",a b}'"""),
        ("tza", "'{2024-01-01 00:00:01+00}'"),
        ("iv", "'1 mon 3 days'"),
        ("bp", "'abc'"),
    ],
)
def test_one_value_that_differs_is_found_in_its_column(every_type: Tables, column: str, value: str) -> None:
    every_type.at_source(f"UPDATE t SET {column} = {value} WHERE id = 1")
    comparison = every_type.compared()
    assert comparison.differences == 1
    assert (comparison.examples[0].kind, list(comparison.examples[0].columns)) == ("different", [column])


def test_missing_extra_and_doubled_rows_are_found(tables: Tables) -> None:
    tables.at_source("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    tables.in_current("id int, v string", "(1, 'a', 1, null), (1, 'a', 1, null), (3, 'c', 1, null)")
    comparison = tables.compared()
    assert comparison.differences == 3
    assert sorted((e.kind, e.key) for e in comparison.examples) == [("extra", (1,)), ("extra", (3,)), ("missing", (2,))]


def test_without_a_key_copies_are_counted(tables: Tables) -> None:
    tables.at_source("CREATE TABLE t (v text, w int)", "INSERT INTO t VALUES ('a', 1), ('a', 1), ('b', NULL)")
    tables.in_current("v string, w int", "('a', 1, 1, null), ('b', null, 1, null)")
    comparison = tables.compared()
    assert [(e.kind, e.columns["v"][0]) for e in comparison.examples] == [("missing", "a")]


def test_a_column_that_one_side_lacks_is_an_error(tables: Tables) -> None:
    tables.at_source("CREATE TABLE t (id int PRIMARY KEY, v text)")
    tables.in_current("id int", "(1, 1, null)")
    with pytest.raises(AssertionError, match="columns of"):
        tables.compared()


def test_a_current_that_does_not_exist_has_no_rows(tables: Tables) -> None:
    tables.at_source("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    comparison = tables.compared()
    assert (comparison.source_rows, comparison.current_rows, comparison.differences) == (1, 0, 1)
