"""Reads the newest changes of one table, as `history` has them, from the staged files that they came in.

A staged file is what `history` holds: masks were applied before it was written. A column is not shown if the file was
written under another mask than the one that is in force now, in the ledger or in the pipeline file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.config import PipelineConfig, TableRule
from tidemark.formats.manifest import StagedFile
from tidemark.ledger import migrations
from tidemark.ledger.captured import relation_ids, tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import batches, generations, positions
from tidemark.lsn import Lsn
from tidemark.names import ORDER_COLUMNS
from tidemark.observe.table_commands import row_of
from tidemark.schema.table import TableSchema
from tidemark.storage.store import Store

CHANGES: Final = 10
# At most so many changes are shown; `history` has all of them.
BATCHES: Final = 10
CHARACTERS: Final = 200


def read(config: PipelineConfig, table: str, *, ledger: str) -> list[dict[str, Any]]:
    """The newest CHANGES of the applied and staged changes, newest first: `op`, `at`, `lsn`, `values` by column as
    texts (None: NULL), and `unchanged`, the columns whose value PostgreSQL did not send. Raises TableUnknown."""
    with open_ledger(ledger, config.pipeline) as book:
        migrations.require(book.connection)
        row = row_of(book, config, table)
        generation = generations.required(book).number
        position = positions.all_of(book, generation).get(row.table)
        if position is None or position.history_lsn is None:
            return []
        files = batches.newest_files(book, generation, row.table, position.history_lsn, BATCHES)
        versions = {schema.version: schema for schema in tables.versions(book, row.table)}
        rule = config.rule(relation_ids.name_of(book, row.table))
    store = Store(config.lake, config.lake_access)
    now = versions[max(versions)]
    newest: list[tuple[dict[str, Any], dict[str, str]]] = []
    for of_batch in files:
        rows = [
            (one, _shown(versions[file.schema_version], now, rule))
            for file in of_batch
            for one in _last_rows(store, file)
        ]
        rows.sort(key=lambda one: tuple(one[0][name] for name in ORDER_COLUMNS), reverse=True)
        newest += rows[: CHANGES - len(newest)]
        if len(newest) == CHANGES:
            break
    return [_change(one, shown) for one, shown in newest]


def _last_rows(store: Store, file: StagedFile) -> Iterator[dict[str, Any]]:
    """The last CHANGES rows of a file; none of a file that maintenance has removed."""
    try:
        with store.open(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            groups: list[pa.Table] = []
            for number in reversed(range(parquet.num_row_groups)):
                groups.insert(0, parquet.read_row_group(number))
                if sum(group.num_rows for group in groups) >= CHANGES:
                    break
    except FileNotFoundError:
        return
    if not groups:
        return
    rows = pa.concat_tables(groups)
    yield from rows.slice(max(0, rows.num_rows - CHANGES)).to_pylist()


def _shown(then: TableSchema, now: TableSchema, rule: TableRule | None) -> dict[str, str]:
    """The file's columns that are captured in the same way today: present name -> name then. `rule` is the pipeline
    file's, which may be newer than the last run."""
    if rule is None:
        return {}
    before = {column.attnum: column for column in then.columns}
    return {
        column.name: before[column.attnum].name
        for column in now.columns
        if column.attnum in before
        and before[column.attnum].mask == column.mask == rule.mask.get(column.name)
        and column.name not in rule.leave_out
    }


def _change(row: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
    texts = dict(row["_text"] or ())
    at: datetime = row["_committed_at"]
    unchanged = set(row["_unchanged"] or ())
    return {
        "op": row["_op"],
        "at": at.isoformat(),
        "lsn": str(Lsn(row["_commit_lsn"])),
        "values": {name: _cut(texts.get(then, _text(row[then]))) for name, then in shown.items()},
        "unchanged": [name for name, then in shown.items() if then in unchanged],
    }


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return f"\\x{value[:CHARACTERS].hex()}"
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"
