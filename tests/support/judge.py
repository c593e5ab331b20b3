"""The judge of every scenario, fault and simulation: source, `current` and `history` -> the sentences that say what is wrong.

1. `current` equals the source, by value, in all columns (include/standalone/comparison.py, which shares no code with the codec).
2. The last row per key in history above the last truncate, less deletes, equals current. Without a key: inserts less deletes,
   as multisets, where an update is the delete of its old row and the insert of its new one.
3. A second run changes nothing: no Delta table has a new version.
A table that is parked or marked as needing a backfill is outside of 1 and 2 only where the test says that it shall be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from standalone.comparison import compare
from tests.support.capture import Environment
from tidemark.ledger import tables as ledger_tables
from tidemark.ledger.tables import TableRow
from tidemark.names import METADATA_COLUMNS, TableName, spark_identifier
from tidemark.schema.table import TableSchema
from tidemark.staging import layout

ORDER = ("_generation", "_commit_lsn", "_ordinal")


def captured(environment: Environment) -> dict[str, TableRow]:
    """The tables that the pipeline captures now, by id."""
    with environment.ledger_connection() as connection:
        return {row.table: row for row in ledger_tables.all_of(connection, environment.config.pipeline) if row.captured}


def schema_of(environment: Environment, table: str) -> TableSchema | None:
    """The newest version of the table's definition; None before its first change was staged."""
    with environment.ledger_connection() as connection:
        versions = ledger_tables.versions(connection, environment.config.pipeline, table)
        return versions[-1] if versions else None


def marked(row: TableRow) -> str | None:
    """Why the table may differ from its source: parked, or needs a backfill; None where it may not."""
    if row.state == "parked":
        assert row.error is not None
        return f"parked: {row.error['kind']}: {row.error['message']}"
    return f"needs backfill: {row.backfill_reason}" if row.needs_backfill else None


def wrongs(environment: Environment, tables: Iterable[str] | None = None, excused: Iterable[str] = ()) -> list[str]:
    """Everything that is wrong with the tables (default: all captured) now; `excused` are those that the test marks itself."""
    rows = captured(environment)
    excused = set(excused)
    found: list[str] = []
    for table in sorted(rows if tables is None else tables):
        if table in excused:
            continue
        row = rows.get(table)
        if row is None:
            found.append(f"{table}: not captured")
        elif (why := marked(row)) is not None:
            found.append(f"{table}: {why}")
        else:
            found += current_equals_source(environment, table)
            found += history_leads_to_current(environment, table)
    return found


def current_equals_source(environment: Environment, table: str) -> list[str]:
    schema = schema_of(environment, table)
    if schema is not None and not schema.key and schema.identity != "full":
        return []  # history only
    rule = environment.config.rule(TableName.parse(table))
    assert rule is not None
    compared = compare(
        environment.spark(),
        source=environment.source,
        lake=environment.config.lake,
        pipeline=environment.config.pipeline,
        table=table,
        leave_out=rule.leave_out,
        masked=tuple(rule.mask),
    )
    if compared.equal:
        return []
    examples = "; ".join(str(example) for example in compared.examples)
    return [
        f"{table}: {compared.differences} differences between source ({compared.source_rows} rows) and current "
        f"({compared.current_rows} rows): {examples}"
    ]


def history_leads_to_current(environment: Environment, table: str) -> list[str]:
    schema = schema_of(environment, table)
    current, history = read(environment, "current", table), read(environment, "history", table)
    if history is None:
        return [] if current is None or current.isEmpty() else [f"{table}: current has rows and there is no history"]
    found = _order_is_unique(table, history)
    if current is None:
        return found
    assert schema is not None
    columns = [c for c in current.columns if c not in METADATA_COLUMNS]
    missing = [c for c in columns if c not in history.columns]
    if missing:
        return [*found, f"{table}: history lacks the columns {missing}"]
    wanted = Counter(_as_text(current, columns))
    changes = _changes(history, schema.key, columns)
    have = _last_rows(changes) if schema.key else _remaining_rows(changes)
    for row, count in (wanted - have).items():
        found.append(f"{table}: {count} x in current and not the outcome of history: {row[:300]}")
    for row, count in (have - wanted).items():
        found.append(f"{table}: {count} x the outcome of history and not in current: {row[:300]}")
    return found[:6]


def _last_rows(changes: list[tuple[str, str, str]]) -> Counter[str]:
    rows: dict[str, str] = {}
    for operation, key, row in changes:
        if operation == "truncate":
            rows.clear()
        elif operation == "delete":
            rows.pop(key, None)
        else:
            rows[key] = row
    return Counter(rows.values())


def _remaining_rows(changes: list[tuple[str, str, str]]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for operation, _, row in changes:
        if operation == "truncate":
            rows.clear()
        else:
            rows[row] += -1 if operation == "delete" else 1
    return rows


def _changes(history: DataFrame, key: tuple[str, ...], columns: list[str]) -> list[tuple[str, str, str]]:
    """Operation, key and row of every change in R1 order; of a key change the delete comes before the insert."""
    ordered = history.orderBy(*ORDER, F.when(F.col("_op") == "delete", 0).otherwise(1))
    return [tuple(row) for row in ordered.select("_op", _json(key or columns), _json(columns)).collect()]


def _order_is_unique(table: str, history: DataFrame) -> list[str]:
    twice = history.groupBy(*ORDER, "_op").count().where("count > 1").limit(3).collect()
    return [f"{table}: a change stands more than once in history: {tuple(row)}" for row in twice]


def _as_text(frame: DataFrame, columns: list[str]) -> list[str]:
    return [row[0] for row in frame.select(_json(columns)).collect()]


def _json(columns: Iterable[str]) -> Any:
    """Rows as text, NULLs included: what was written from one value reads as one text, and NaN equals NaN."""
    return F.to_json(F.struct(*(F.col(spark_identifier(c)) for c in columns)), {"ignoreNullFields": "false"})


# --- Delta tables ----------------------------------------------------------------------------------------------------


def table_path(environment: Environment, kind: str, table: str) -> Path:
    locate = {"current": layout.current_table, "history": layout.history_table}[kind]
    return Path(environment.config.lake) / locate(environment.config.pipeline, TableName.parse(table))


def read(environment: Environment, kind: str, table: str) -> DataFrame | None:
    """The Delta table "current" or "history" of a table; None where there is none."""
    path = table_path(environment, kind, table)
    if not (path / "_delta_log").exists():
        return None
    spark: SparkSession = environment.spark()
    return spark.read.format("delta").load(str(path))


def delta_versions(environment: Environment) -> dict[str, int]:
    """The newest version of every Delta table of the pipeline, by its path below the lake."""
    root = Path(environment.config.lake) / environment.config.pipeline
    versions: dict[str, int] = {}
    for log in root.glob("*/*/*/_delta_log"):
        commits = [int(commit.stem) for commit in log.glob("*.json") if commit.stem.isdigit()]
        versions[str(log.parent.relative_to(root))] = max(commits)
    return versions


def second_run_changes_nothing(environment: Environment) -> list[str]:
    """Run once more with nothing to do, and say which Delta tables have a new version."""
    before = delta_versions(environment)
    report = environment.run()
    after = delta_versions(environment)
    found = [
        f"{table}: version {before.get(table)} before, {version} after a run without changes"
        for table, version in after.items()
        if version != before.get(table)
    ]
    if report.spark_started:
        found.append("a run without changes started Spark")
    return found
