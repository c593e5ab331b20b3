"""The witnesses' lake without Spark: plans are merged into lists of rows, and each list is compared with its source.

A whole suite takes minutes so, and what it finds is of drain, definitions, backfill and planning. What Spark writes
into Delta tables, and `history`, are judged by a run with Delta (`tests.witnesses.captured_database`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, cast

from pyspark.sql import types as T

from sandbox.checks.comparison import compare_rows
from tests.definitions.list_of_rows import Lake, Row, Target, text_of
from tests.support import judge
from tests.support.capture import Environment
from tests.support.pipeline import Pipeline
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.formats.merge_result import TableResult
from tidemark.target.spark import table_columns

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _IndexedTarget(Target):
    """Finds the row that a change of a table without a key means by an index: the tests change ten thousand at once."""

    def _apply_by_rows(self, reading: Any) -> None:
        if reading.chunks:
            super()._apply_by_rows(reading)
            return
        names = [c.name for c in reading.schema.columns if c.name not in reading.schema.dropped]
        places: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
        rows: list[Row | None] = list(self.rows)

        def keyed(row: Row) -> tuple[str | None, ...]:
            return tuple(text_of(row.get(name)) for name in names)

        for place, row in enumerate(self.rows):
            places[keyed(row)].append(place)
        for change in reading.changes:
            old = change.old or {}
            if change.op == "truncate":
                rows, places = [], defaultdict(list)
            if change.op in ("update", "delete") and (found := places.get(keyed(old))):
                rows[found.pop()] = None
            if change.op in ("update", "insert"):
                row = {f.name: None for f in self.fields}
                row |= {name: old.get(name) if name in change.unchanged else v for name, v in change.row.items()}
                places[keyed(row)].append(len(rows))
                rows.append(row)
        self.rows = [row for row in rows if row is not None]


@dataclass
class _CountedLake(Lake):
    """`merges` has by table how often a plan named it."""

    merges: Counter[str] = field(default_factory=Counter)

    def _result(self, plan: MergePlan, planned: PlannedTable) -> TableResult:
        self.merges[planned.table] += 1
        self.targets.setdefault(planned.table, _IndexedTarget(str(self.pipeline.config.lake)))
        return super()._result(plan, planned)


@dataclass
class EnvironmentOfRows(Environment):
    """Whole runs whose merges need no Spark."""

    tables: _CountedLake = field(init=False)

    def __post_init__(self) -> None:
        self.tables = _CountedLake(cast(Pipeline, self))

    def merge(self, *, by_hand: bool = False) -> None:
        self.tables.merge()


@dataclass(frozen=True, slots=True)
class TablesOfRows:
    """What the judge asks of the lists."""

    environment: EnvironmentOfRows

    def version(self, table: str) -> str:
        return str(self.environment.tables.merges[table])

    def wrongs(self, table: str) -> list[str]:
        schema = judge.schema_of(self.environment, table)
        if schema is not None and not schema.key and schema.identity != "full":
            return []  # history only
        name = judge.called(self.environment, table)
        target = self.environment.tables.targets.get(table)
        live = self.environment.query(
            "SELECT attnum::int FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND attrelid = "
            f"to_regclass(format('%I.%I', '{_doubled(name.schema)}', '{_doubled(name.name)}'))"
        )
        fields = None if target is None or not target.fields else _kept(target, {number for (number,) in live})

        def rows(compared: list[T.StructField]) -> Sequence[tuple[Any, ...]]:
            held = [] if target is None else target.rows
            return [tuple(_plain(row[f.name], f.dataType) for f in compared) for row in held]

        of = self.environment
        publication = of.config.publication
        compared = compare_rows(source=of.source, table=str(name), fields=fields, rows=rows, publication=publication)
        if compared.equal:
            return []
        return [
            f"{compared.differences} differences between source ({compared.source_rows} rows) and current "
            f"({compared.current_rows} rows): {'; '.join(map(str, compared.examples))}"
        ]

    def wrongs_of_dropped(self, table: str) -> list[str]:
        return []


def _doubled(text: str) -> str:
    return text.replace("'", "''")


def _kept(target: Target, live: set[int]) -> list[T.StructField]:
    """The fields but those of columns that the source has no more."""
    told = [(f, f.metadata.get(table_columns.SOURCE, {}).get("attnum", 0)) for f in target.fields]
    return [f for f, number in told if not number or number in live]


def _plain(value: Any, kind: T.DataType) -> Any:
    """In the form of `sandbox.checks.comparison`."""
    if value is None:
        return None
    match kind:
        case T.FloatType() | T.DoubleType():
            return repr(value)
        case T.TimestampType() | T.TimestampNTZType():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            passed = moment - _EPOCH
            return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
        case T.DateType():
            return (value - date(1970, 1, 1)).days
        case T.ArrayType():
            return tuple(_plain(element, kind.elementType) for element in value)
        case T.MapType():
            return tuple(sorted(value.items() if isinstance(value, dict) else value))
    return value
