"""The judge of every scenario, fault and simulation: source, `current`, `history` -> the sentences that say what is
wrong.

1. `current` equals the source, by value, in all columns (include/sandbox/checks/comparison.py).
2. The last row per key in history above the last truncate, less deletes and sweeps, equals current. Without a key:
   inserts and reads less deletes and sweeps, as multisets, where an update is the delete of its old row and the insert
   of its new one.
3. A second run changes nothing: no Delta table has a new version.
A table that is parked or marked as needing a backfill is outside of 1 and 2 only where the test says that it shall be.
The Delta tables are read without Spark (tests/support/delta_files.py): no code of what is judged is used, nor its time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sandbox.checks.comparison import Comparison, compare_rows
from tests.support import delta_files
from tests.support.capture import Environment, go_on
from tests.support.delta_files import DeltaFiles, Row
from tests.support.stage_process import Started
from tidemark.formats import layout
from tidemark.ledger.captured import relation_ids
from tidemark.ledger.captured import tables as ledger_tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.names import METADATA_COLUMNS, TableName
from tidemark.schema.table import TableSchema

REMOVALS = ("delete", "sweep")
ADDITIONS = ("read", "sweep")
DROPPED = "Dropped at the source"  # docs/formats.md


def captured(environment: Environment) -> dict[str, TableRow]:
    """The tables that the pipeline captures now, by id."""
    with environment.ledger_connection() as connection:
        return {row.table: row for row in ledger_tables.all_of(connection) if row.life.is_captured}


def called(environment: Environment, table: str) -> TableName:
    """What the source calls the table that has this id."""
    with environment.ledger_connection() as connection:
        return relation_ids.name_of(connection, table)


def schema_of(environment: Environment, table: str) -> TableSchema | None:
    """The newest version of the table's definition; None before its first change was staged."""
    with environment.ledger_connection() as connection:
        versions = ledger_tables.versions(connection, table)
        return versions[-1] if versions else None


def marked(row: TableRow) -> str | None:
    """Why the table may differ from its source: parked, paused, or needs a backfill; None where it may not."""
    if row.life.is_parked:
        assert row.error is not None
        return f"{row.life.merge}: {row.error.kind}: {row.error.message}"
    if row.life.is_paused:
        return f"paused: by {row.paused_by}"
    return f"needs backfill: {row.backfill_reason}" if row.life.needs_backfill else None


def wrongs(
    environment: Environment,
    tables: Iterable[str] | None = None,
    excused: Iterable[str] = (),
) -> list[str]:
    """Everything that is wrong with the tables (default: all captured) now. `excused` are those that the test marks
    itself."""
    rows = captured(environment)
    excused = set(excused)
    sentences: list[str] = []
    for table in sorted(rows if tables is None else tables):
        if table in excused:
            continue
        row = rows.get(table)
        if row is None:
            sentences.append(f"{table}: not captured")
        elif (why := marked(row)) is not None:
            sentences.append(f"{table}: {why}")
        else:
            sentences += current_equals_source(environment, table)
            sentences += history_leads_to_current(environment, table)
    return sentences


def current_equals_source(environment: Environment, table: str) -> list[str]:
    schema = schema_of(environment, table)
    if schema is not None and not schema.key and schema.identity != "full":
        return []  # history only
    name = called(environment, table)
    rule = environment.config.rule(name)
    assert rule is not None, f"the file does not name {name}"
    current = read(environment, "current", table)
    compared = compare(environment.source, current, str(name), rule.leave_out, tuple(rule.mask))
    if compared.equal:
        return []
    examples = "; ".join(str(example) for example in compared.examples)
    return [
        f"{table}: {compared.differences} differences between source ({compared.source_rows} rows) and current "
        f"({compared.current_rows} rows): {examples}"
    ]


def compare(
    source: str, current: DeltaFiles | None, table: str, leave_out: Collection[str] = (), masked: Collection[str] = ()
) -> Comparison:
    """What `sandbox.checks.comparison.compare` says, of rows that were read without Spark."""
    rows = [] if current is None else current.rows()
    return compare_rows(
        source=source,
        table=table,
        fields=None if current is None else current.fields,
        rows=lambda fields: [tuple(row[field.name] for field in fields) for row in rows],
        leave_out=leave_out,
        masked=masked,
    )


def history_leads_to_current(environment: Environment, table: str) -> list[str]:
    schema = schema_of(environment, table)
    current, history = read(environment, "current", table), read(environment, "history", table)
    if history is None:
        return [] if current is None or not current.rows() else [f"{table}: current has rows and there is no history"]
    changes = in_order(with_defaults(history))
    sentences = _twice(table, changes, () if schema is None else schema.key)
    if current is None:
        return sentences
    assert schema is not None
    fields = [field for field in current.fields if field.name not in METADATA_COLUMNS]
    if not schema.key:  # a column that was dropped says nothing of which row it is
        fields = [field for field in fields if not field.metadata.get("comment", "").startswith(DROPPED)]
    columns = [field.name for field in fields]
    missing = sorted(set(columns) - {field.name for field in history.fields})
    if missing:
        return [*sentences, f"{table}: history lacks the columns {missing}"]
    have = Counter(_values(row, columns) for row in current.rows())
    outcome = _last_rows(changes, schema.key, columns) if schema.key else _remaining_rows(changes, columns)
    for row, count in (have - outcome).items():
        sentences.append(f"{table}: {count} x in current and not the outcome of history: {str(row)[:300]}")
    for row, count in (outcome - have).items():
        sentences.append(f"{table}: {count} x the outcome of history and not in current: {str(row)[:300]}")
    return sentences[:6]


def with_defaults(history: DeltaFiles) -> list[Row]:
    """The rows of history with what those mean that were written before a column with a default was added, as the
    column's own metadata says (docs/formats.md)."""
    rows = history.rows()
    for field in history.fields:
        older = field.metadata.get("tidemark.older")
        if older is None:
            continue
        below = older["generation"], older["commit_lsn"]
        default = delta_files.from_text(older["default"], field)
        for row in rows:
            is_older = (row["_generation"], row["_commit_lsn"]) < below
            if is_older and row["_op"] != "truncate":
                assert row[field.name] is None, f"an older row has a value in {field.name}"
                row[field.name] = default
    return rows


def in_order(changes: list[Row]) -> list[Row]:
    """History in R1 order; of a change of the key the delete comes before the insert."""
    return sorted(changes, key=lambda c: (*_order_key(c), c["_op"] not in REMOVALS))


def _order_key(change: Row) -> tuple[int, int, int]:
    return change["_generation"], change["_commit_lsn"], change["_ordinal"]


def _values(row: Row, columns: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns)


def _last_rows(changes: list[Row], key: tuple[str, ...], columns: list[str]) -> Counter[tuple[Any, ...]]:
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for change in changes:
        if change["_op"] == "truncate":
            rows.clear()
        elif change["_op"] in REMOVALS:
            rows.pop(_values(change, key), None)
        else:
            rows[_values(change, key)] = _values(change, columns)
    return Counter(rows.values())


def _remaining_rows(changes: list[Row], columns: list[str]) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    for change in changes:
        if change["_op"] == "truncate":
            rows.clear()
        else:
            rows[_values(change, columns)] += -1 if change["_op"] in REMOVALS else 1
    return rows


def _twice(table: str, changes: list[Row], key: tuple[str, ...]) -> list[str]:
    """A change stands in history once: as one row, or as the delete and the insert of a change of the key. What chunks
    add all stands at one watermark, each key once."""
    of_stream = [change for change in changes if change["_op"] not in ADDITIONS]
    counted = Counter((*_order_key(change), change["_op"]) for change in of_stream)
    if key:
        of_chunks = [change for change in changes if change["_op"] in ADDITIONS]
        counted += Counter((*_order_key(change), str(_values(change, key))) for change in of_chunks)
    return [f"{table}: {count} times in history: {change}" for change, count in counted.items() if count > 1][:3]


def ledger_as_text(environment: Environment) -> str:
    """All rows of the ledger."""
    listed = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'tidemark'"
    names = [name for (name,) in environment.ledger_query(listed)]
    return "\n".join(str(environment.ledger_query(f"SELECT t::text FROM tidemark.{name} t")) for name in names)


# --- Delta tables ----------------------------------------------------------------------------------------------------


def lake_folder(environment: Environment) -> Path:
    """The lake's files: its own folder, or what lies in its bucket now, copied."""
    if environment.buckets is None:
        return Path(environment.config.lake)
    lake = urlsplit(environment.config.lake)
    copied = environment.folder / "copied"
    environment.buckets.copy(lake.netloc, copied)
    return copied / lake.path.strip("/")


def table_uri(environment: Environment, kind: str, table: str) -> str:
    """The Delta table as Spark finds it."""
    locate = {"current": layout.current_table, "history": layout.history_table}[kind]
    return f"{environment.config.lake}/{locate(environment.config.pipeline, TableName.parse(table))}"


def table_path(environment: Environment, kind: str, table: str) -> Path:
    locate = {"current": layout.current_table, "history": layout.history_table}[kind]
    return lake_folder(environment) / locate(environment.config.pipeline, TableName.parse(table))


def read(environment: Environment, kind: str, table: str) -> DeltaFiles | None:
    """The Delta table "current" or "history" of a table; None where there is none."""
    return delta_files.read(table_path(environment, kind, table))


def delta_versions(environment: Environment) -> dict[str, int]:
    """The newest version of every Delta table of the pipeline, by its path below the lake."""
    root = lake_folder(environment) / environment.config.pipeline
    versions: dict[str, int] = {}
    for log in root.glob("*/*/*/_delta_log"):
        commits = [int(commit.stem) for commit in log.glob("*.json") if commit.stem.isdigit()]
        versions[str(log.parent.relative_to(root))] = max(commits)
    return versions


def changes_of_outlived(environment: Environment, driver: Started) -> list[str]:
    """What is wrong already, and what a halted driver, whose task was run again meanwhile, then still changes."""
    already = wrongs(environment)
    before = delta_versions(environment)
    go_on(driver)
    after = delta_versions(environment)
    changed = sorted(table for table in before.keys() | after.keys() if before.get(table) != after.get(table))
    return [*already, *(f"{table}: the outlived driver committed" for table in changed)]


def data_written_since(environment: Environment, versions: Mapping[str, int]) -> dict[str, str]:
    """By Delta table what newer versions than these added or removed; a commit that only moves the position is none."""
    root = lake_folder(environment) / environment.config.pipeline
    sentences: dict[str, str] = {}
    for table, newest in delta_versions(environment).items():
        for version in range(versions.get(table, -1) + 1, newest + 1):
            lines = (
                (root / table / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8").strip().split("\n")
            )
            written = [kind for line in lines for kind in json.loads(line) if kind in ("add", "remove", "metaData")]
            if written:
                sentences[table] = f"version {version}: {Counter(written)}"
    return sentences


def second_run_changes_nothing(environment: Environment) -> list[str]:
    """Run once more with nothing to do, and say which Delta tables have a new version."""
    before = delta_versions(environment)
    report = environment.run()
    after = delta_versions(environment)
    sentences = [
        f"{table}: version {before.get(table)} before, {version} after a run without changes"
        for table, version in after.items()
        if version != before.get(table)
    ]
    if report.spark_started:
        sentences.append("a run without changes started Spark")
    return sentences
