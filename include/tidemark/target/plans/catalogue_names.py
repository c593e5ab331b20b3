"""Registers a table's Delta tables in Spark's catalogue after a merge, under the schema that the pipeline file names.

`spark.tidemark.catalogue` names the schema, and also the catalogue if it is not the session's: `shop_lake`,
`main.shop`. `{schema}` in it stands for the schema at the source. Spark's settings choose the kind of catalogue
(Spark's own, Hive's, Unity's). Sources: Spark documentation, "Catalog Plugin API", "Hive Tables".

    shop.orders    current, history, _positions  ──►  orders, orders__history, tidemark_positions

A name is only an entry in the catalogue. Registering it moves no table, and no merge depends on it. So an error here is
logged, and the next merge tries again. A name may point to another table in this pipeline's folder, because a table was
renamed, or dropped and created again. Such a name is given to the table that has it now. Any other name is not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan, StagedLevel
from tidemark.formats.merge_result import PlanResult
from tidemark.names import TableName, spark_identifier
from tidemark.spark_submit.spark_connection import CATALOGUE
from tidemark.target.delta import delta_tables
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import condition_of

log = logging.getLogger(__name__)

POSITIONS: Final = "tidemark_positions"

# After so many errors the rest is left to the next merge, so that no table waits for an unreachable catalogue.
MAX_FAILURES: Final = 3

_NOT_FOUND: Final = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
_DETAILS: Final = "# Detailed Table Information"


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in the catalogue for the Delta table at `path`.

    A missing entry is created. An existing entry is compared with `path` only if it is `checked`.
    """

    schema: str
    name: str
    path: str
    checked: bool


def name_tables(spark: SparkSession, plan: MergePlan, result: PlanResult) -> None:
    """Register the tables that the plan merged, and the pipeline's other tables that have no entry yet."""
    pattern = spark.conf.get(CATALOGUE, None)
    if not pattern or plan.level is None:
        return
    session = table_session(spark, pool="catalogue", lake=plan.lake)
    existing: dict[str, set[str]] = {}
    failures = 0
    for entry in _entries(plan, plan.level, result, pattern):
        if failures == MAX_FAILURES:
            log.warning("The catalogue is left as it is until the next merge")
            return
        try:
            if entry.schema not in existing:
                existing[entry.schema] = _names_in(session, entry.schema)
            if entry.name.lower() not in existing[entry.schema]:
                _create(session, entry)
            elif entry.checked:
                _repoint(session, plan, entry)
        except Exception as failed:  # its message may quote a path, so it is not logged
            failures += 1
            log.warning("%s.%s is not in the catalogue (%s)", entry.schema, entry.name, condition_of(failed))


def _entries(plan: MergePlan, level: StagedLevel, result: PlanResult, pattern: str) -> Iterator[Entry]:
    merged = {table.table for table in result.tables if table.error is None}
    used_names: set[tuple[str, str]] = set()
    if "{" not in pattern:
        used_names.add((pattern, POSITIONS))
        yield Entry(pattern, POSITIONS, f"{plan.lake}/{layout.positions_table(plan.pipeline)}", checked=False)
    for table in sorted({*merged, *level.tables}):
        name_at_source = level.names.get(table, table)
        if name_at_source is None:
            continue  # the table is no longer captured, or is being rebuilt in another shape and is not complete yet
        kept_as, name = TableName.parse(table), TableName.parse(name_at_source)
        schema = pattern.replace("{schema}", name.schema)
        checked = table in merged or name_at_source != table
        for entry in (
            Entry(schema, name.name, f"{plan.lake}/{layout.current_table(plan.pipeline, kept_as)}", checked),
            Entry(
                schema, f"{name.name}__history", f"{plan.lake}/{layout.history_table(plan.pipeline, kept_as)}", checked
            ),
        ):
            if (entry.schema, entry.name.lower()) in used_names:
                log.warning("%s.%s is the name of two tables: write {schema} in %s", schema, entry.name, CATALOGUE)
                continue
            used_names.add((entry.schema, entry.name.lower()))
            yield entry


def _names_in(session: SparkSession, schema: str) -> set[str]:
    """The table names in the schema, in lower case because catalogues ignore case. Creates a missing schema."""
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    return {row["tableName"].lower() for row in session.sql(f"SHOW TABLES IN {_quoted(schema)}").collect()}


def _create(session: SparkSession, entry: Entry) -> None:
    """Create the entry if the Delta table exists. A source table with history only has no current to register."""
    if delta_tables.pin(session, entry.path).exists:
        located = entry.path.replace("\\", "\\\\").replace("'", "\\'")
        session.sql(f"CREATE TABLE IF NOT EXISTS {_full_name(entry)} USING DELTA LOCATION '{located}'")
        log.info("%s.%s is in the catalogue", entry.schema, entry.name)


def _repoint(session: SparkSession, plan: MergePlan, entry: Entry) -> None:
    location, kind = _location_and_type(session, entry)
    if location == _normalised(entry.path):
        return
    if kind != "EXTERNAL" or not location.startswith(f"{_normalised(plan.lake)}/{plan.pipeline}/"):
        log.warning("%s.%s in the catalogue is another table, and is left", entry.schema, entry.name)
        return
    session.sql(f"DROP TABLE {_full_name(entry)}")  # drops only the entry: an EXTERNAL table keeps its files
    _create(session, entry)


def _location_and_type(session: SparkSession, entry: Entry) -> tuple[str, str]:
    """The location and type of the catalogue's table with this name; two empty texts if there is no such table."""
    try:
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {_full_name(entry)}").collect()
    except AnalysisException as failed:
        if condition_of(failed).startswith(_NOT_FOUND):
            return "", ""
        raise
    names = [row["col_name"] for row in rows]
    details = {row["col_name"]: row["data_type"] for row in rows[names.index(_DETAILS) :]} if _DETAILS in names else {}
    return _normalised(details.get("Location", "")), details.get("Type", "")


def _normalised(location: str) -> str:
    """The location in one spelling: file:/lake, file:///lake and /lake are the same folder."""
    local = location.removeprefix("file:")
    return ("/" + local.lstrip("/") if local.startswith("/") else local).rstrip("/")


def _quoted(schema: str) -> str:
    return ".".join(spark_identifier(part) for part in schema.split("."))


def _full_name(entry: Entry) -> str:
    return f"{_quoted(entry.schema)}.{spark_identifier(entry.name)}"
