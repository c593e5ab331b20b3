"""Finds the transactions that the lake has and the source lost in a failover, and the rows they touched: `LostPart`.

    ── timeline 1 ──────────────┬───────────────── staged
                                │ left_lsn         └── these transactions are in the lake alone
                                └── timeline 2 ──►

A standby was promoted that lacked the newest WAL. Every transaction whose commit record lies at or above `left_lsn` is
lost. The batches' transactions.parquet lists them, and the staged changes have the rows that they touched. All other
rows are the same in the new history: changes below that point are common to both, and only the lost transactions came
after it. So only these rows are read again, if they can be identified (R7, R8). Otherwise the whole table is.

A backfill's chunk from above that point needs no search of its own. A chunk is claimed once everything that it can have
seen is staged, so a lost change in it is among those found here. A table that joined above that point is different: it
was changed before it joined, too. The ledger handles it (`generations.open_generation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.formats.manifest import BatchManifest, StagedFile
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading.backfills import Key
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.staging import transactions_file as transactions
from tidemark.staging.batch_writer import check_content
from tidemark.storage.store import Store
from tidemark.wording import counted

# If more rows than these were touched, in one table or in all, the tables are read as a whole.
MAX_KEYS: Final = 10_000
MAX_KEYS_IN_ALL: Final = 100_000
# The number of transactions that the error names; the file next to generation.json has all of them.
NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class LostPart:
    """The lost changes of a generation.

    - `transactions` are the lost transactions that touched captured tables, in the form of transactions.parquet.
    - `tables` maps each table that they touched to the keys, as texts for PostgreSQL, or to None if they are unknown. A
      table with a history alone is left out: no backfill repairs a history.
    """

    transactions: pa.Table
    tables: dict[str, tuple[Key, ...] | None] = field(repr=False)

    def __str__(self) -> str:
        """The first lost transactions by id, commit time and tables."""
        named = [
            f"{row['xid']} of {row['committed_at']:%Y-%m-%d %H:%M:%S} UTC ({', '.join(row['tables'])})"
            for row in self.transactions.slice(0, NAMED).to_pylist()
        ]
        more = self.transactions.num_rows - len(named)
        return "; ".join(named) + (f"; and {more} more" if more else "")

    @property
    def rows_read_again(self) -> str:
        """The number of rows that are read again, by table."""
        return ", ".join(
            f"{table} ({'all rows' if keys is None else counted(len(keys), 'row')})"
            for table, keys in sorted(self.tables.items())
        )


class _KeysUnknown(Exception):
    """The keys of the rows that lost changes touched are unknown. Internal."""


def lost_part(ledger: Ledger, store: Store, generation: Generation, left_lsn: Lsn) -> LostPart | None:
    """The staged changes of the generation at or above `left_lsn`; None if staging does not have all of them as they
    were staged."""
    above = batches.after(ledger, generation.number, left_lsn)
    ends = [above[0].start_lsn if above else generation.staged_lsn, *(batch.end_lsn for batch in above)]
    if ends[0] > left_lsn or any(batch.start_lsn != end for batch, end in zip(above, ends, strict=False)):
        return None
    changes = _LeftChanges(store, left_lsn)
    try:
        for batch in above:
            changes.take(BatchManifest.from_json(store.read(batch.manifest), batch.manifest))
    except (FileNotFoundError, ValueError):
        return None
    return changes.lost_part()


class _LeftChanges:
    def __init__(self, store: Store, left_lsn: Lsn) -> None:
        self._store = store
        self._left = pa.scalar(int(left_lsn), pa.int64())
        self._transactions: list[pa.Table] = []
        self._keys: dict[str, dict[Key, None]] = {}
        self._whole_tables: set[str] = set()

    def take(self, manifest: BatchManifest) -> None:
        if manifest.transactions is not None:
            self._transactions += self._rows(manifest.transactions, transactions.SCHEMA.names)
        schemas = {(str(schema.table), schema.version): schema for schema in manifest.schemas}
        for changes in manifest.tables:
            for file in changes.files:
                schema = schemas[changes.table, file.schema_version]
                if not schema.key and not schema.is_multiset:
                    continue  # it has a history alone, from which no backfill removes rows
                if changes.table in manifest.fingerprints:
                    # The table's definition may have changed in the lost part.
                    self._whole_tables |= {changes.table} if self._is_touched(file) else set()
                else:
                    self._add_keys(schema, file)

    def lost_part(self) -> LostPart:
        found = pa.concat_tables([transactions.SCHEMA.empty_table(), *self._transactions])
        found = found.filter(pc.greater(pc.list_value_length(found["tables"]), 0))
        tables: dict[str, tuple[Key, ...] | None] = {table: tuple(keys) for table, keys in self._keys.items()}
        if sum(map(len, self._keys.values())) > MAX_KEYS_IN_ALL:
            self._whole_tables |= set(tables)
        return LostPart(found, {**tables, **dict.fromkeys(sorted(self._whole_tables))})

    def _rows(self, file: StagedFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The lost rows of a staged file, by row group. Raises FileNotFoundError; ValueError if size or checksum
        differ: PyArrow reports damage as an OSError, as stores do what passes."""
        with self._store.open(file.path) as opened:
            check_content(opened, file)
            parquet = pq.ParquetFile(opened)
            at = "commit_lsn" if "commit_lsn" in columns else "_commit_lsn"
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group, columns=[*columns])
                yield rows.filter(pc.greater_equal(rows[at], self._left))

    def _is_touched(self, file: StagedFile) -> bool:
        return any(rows.num_rows for rows in self._rows(file, ["_commit_lsn"]))

    def _add_keys(self, schema: TableSchema, file: StagedFile) -> None:
        table = str(schema.table)
        if table in self._whole_tables:
            return
        columns = ["_commit_lsn", "_op", *schema.key, *(["_old_key"] if schema.key else [])]
        try:
            for rows in self._rows(file, columns):
                if not rows.num_rows:
                    continue
                keys = self._keys.setdefault(table, {})
                keys |= dict.fromkeys(_keys_of(schema, rows))
                if len(keys) > MAX_KEYS:
                    raise _KeysUnknown
        except _KeysUnknown:
            self._keys.pop(table, None)
            self._whole_tables.add(table)


def _keys_of(schema: TableSchema, rows: pa.Table) -> Iterator[Key]:
    """The keys of changes, and those from before a key was changed. Raises _KeysUnknown."""
    if not schema.key or pc.any(pc.equal(rows["_op"], "truncate")).as_py():
        raise _KeysUnknown
    try:
        new = [rows[name].to_pylist() for name in schema.key]
        before = rows["_old_key"].drop_null().to_pylist()
    except OverflowError:  # Python has no day before the year 1 or after 9999
        raise _KeysUnknown from None
    yield from zip(*(map(_text, values) for values in new), strict=True)
    for old in before:
        yield tuple(_text(old[name]) for name in schema.key)


def _text(value: Any) -> str:
    """A stored value as a text of the key for PostgreSQL. Raises _KeysUnknown if no text is exact."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return f"{value:f}" if isinstance(value, Decimal) else str(value)
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat(" ")
        case date():
            return value.isoformat()
        case _:
            raise _KeysUnknown
