"""Registers a table's Delta tables in Spark's catalogue after a merge, under the schema that the pipeline file names.

`spark.tidemark.catalogue` names the schema, and its catalogue if that is not the session's: `shop_lake`, `main.shop`.
`{schema}` in it stands for the schema at the source. The catalogue's own settings say which one it is (Spark's own,
Hive's, Unity's). Sources: Spark documentation, "Catalog Plugin API", "Hive Tables".

    shop.orders    current, history, _positions  ──►  orders, orders__history, tidemark_positions

A name is only an entry: no table is moved, and no merge depends on it. So an error here is logged, and the next merge
tries again. A name that points to another table of this pipeline's folder belongs to a table that was renamed, or
dropped and created again: it is given to the table that has the name now. Any other name is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tidemark.formats import layout
from tidemark.formats.merge_plan import Level, MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.names import TableName, spark_identifier
from tidemark.spark_submit.spark_connection import CATALOGUE
from tidemark.target.delta import delta_tables
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import condition_of

log = logging.getLogger(__name__)

POSITIONS: Final = "tidemark_positions"

# A catalogue that is away is not asked once for each table.
MAX_FAILURES: Final = 3

_NOT_THERE: Final = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
_DETAILS: Final = "# Detailed Table Information"


@dataclass(frozen=True, slots=True)
class Entry:
    """`path` is the Delta table's that has the name. One that is not `checked` is made where it is missing, and not
    compared."""

    schema: str
    name: str
    path: str
    checked: bool


def name_tables(spark: SparkSession, plan: MergePlan, result: PlanResult) -> None:
    """Name what the plan merged, and whatever else of the pipeline has no name yet."""
    pattern = spark.conf.get(CATALOGUE, None)
    if not pattern or plan.level is None:
        return
    session = table_session(spark, pool="catalogue", lake=plan.lake)
    there: dict[str, set[str]] = {}
    failures = 0
    for entry in _entries(plan, plan.level, result, pattern):
        if failures == MAX_FAILURES:
            log.warning("The catalogue is left as it is until the next merge")
            return
        try:
            if entry.schema not in there:
                there[entry.schema] = _names_in(session, entry.schema)
            if entry.name.lower() not in there[entry.schema]:
                _create(session, entry)
            elif entry.checked:
                _lead_there(session, plan, entry)
        except Exception as failed:  # what it says may quote a path
            failures += 1
            log.warning("%s.%s is not in the catalogue (%s)", entry.schema, entry.name, condition_of(failed))


def _entries(plan: MergePlan, level: Level, result: PlanResult, pattern: str) -> Iterator[Entry]:
    merged = {table.table for table in result.tables if table.error is None}
    taken: set[tuple[str, str]] = set()
    if "{" not in pattern:
        taken.add((pattern, POSITIONS))
        yield Entry(pattern, POSITIONS, f"{plan.lake}/{layout.positions_table(plan.pipeline)}", checked=False)
    for table in sorted({*merged, *level.tables}):
        called = level.names.get(table, table)
        if called is None:
            continue  # it is captured no more, or built in another shape and not whole
        kept_as, name = TableName.parse(table), TableName.parse(called)
        schema = pattern.replace("{schema}", name.schema)
        checked = table in merged or called != table
        for entry in (
            Entry(schema, name.name, f"{plan.lake}/{layout.current_table(plan.pipeline, kept_as)}", checked),
            Entry(
                schema, f"{name.name}__history", f"{plan.lake}/{layout.history_table(plan.pipeline, kept_as)}", checked
            ),
        ):
            if (entry.schema, entry.name.lower()) in taken:
                log.warning("%s.%s is the name of two tables: write {schema} in %s", schema, entry.name, CATALOGUE)
                continue
            taken.add((entry.schema, entry.name.lower()))
            yield entry


def _names_in(session: SparkSession, schema: str) -> set[str]:
    """In lower case: catalogues tell names apart without it. The schema is made where it is not there."""
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    return {row["tableName"].lower() for row in session.sql(f"SHOW TABLES IN {_quoted(schema)}").collect()}


def _create(session: SparkSession, entry: Entry) -> None:
    """A Delta table that does not exist gets no name: the current of a table that has history alone."""
    if delta_tables.pin(session, entry.path).exists:
        located = entry.path.replace("\\", "\\\\").replace("'", "\\'")
        session.sql(f"CREATE TABLE IF NOT EXISTS {_full(entry)} USING DELTA LOCATION '{located}'")
        log.info("%s.%s is in the catalogue", entry.schema, entry.name)


def _lead_there(session: SparkSession, plan: MergePlan, entry: Entry) -> None:
    location, kind = _place_and_type(session, entry)
    if location == _plain(entry.path):
        return
    if kind != "EXTERNAL" or not location.startswith(f"{_plain(plan.lake)}/{plan.pipeline}/"):
        log.warning("%s.%s in the catalogue is another table, and is left", entry.schema, entry.name)
        return
    session.sql(f"DROP TABLE {_full(entry)}")  # the entry alone: what is external keeps its files
    _create(session, entry)


def _place_and_type(session: SparkSession, entry: Entry) -> tuple[str, str]:
    """Where the table lies that has the name, and of which type it is."""
    try:
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {_full(entry)}").collect()
    except AnalysisException as failed:
        if condition_of(failed).startswith(_NOT_THERE):
            return "", ""
        raise
    names = [row["col_name"] for row in rows]
    details = {row["col_name"]: row["data_type"] for row in rows[names.index(_DETAILS) :]} if _DETAILS in names else {}
    return _plain(details.get("Location", "")), details.get("Type", "")


def _plain(location: str) -> str:
    """file:/lake, file:///lake and /lake are one."""
    local = location.removeprefix("file:")
    return ("/" + local.lstrip("/") if local.startswith("/") else local).rstrip("/")


def _quoted(schema: str) -> str:
    return ".".join(spark_identifier(part) for part in schema.split("."))


def _full(entry: Entry) -> str:
    return f"{_quoted(entry.schema)}.{spark_identifier(entry.name)}"
