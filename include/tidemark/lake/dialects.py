"""Holds the differences between the engines' SQL: names, literals, lists. `as_of_query` has everything else, once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidemark.names import spark_identifier

_EPOCH = datetime(1970, 1, 1)


class Dialect:
    """The SQL of one engine: Spark's, with its own escapes in texts, unless a subclass says otherwise."""

    def name(self, name: str) -> str:
        """A column's or table's name, quoted."""
        return spark_identifier(name)

    def text(self, value: str) -> str:
        # Before it reads a statement, Spark puts its settings in place of what is written as ${setting}.
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
        return f"'{escaped}'"

    def time(self, value: datetime) -> str:
        """A literal of a moment with time zone."""
        return f"TIMESTAMP '{value.astimezone(UTC).isoformat()}'"

    def clock_time(self, value: datetime) -> str:
        """A literal of a time without time zone."""
        return f"TIMESTAMP_NTZ '{value.isoformat()}'"

    def array(self, elements: Sequence[str]) -> str:
        return f"array({', '.join(elements)})"

    def has(self, array: str, element: str) -> str:
        """Whether the array contains the element, both expressions; NULL for NULL."""
        return f"array_contains({array}, {element})"

    def without(self, array: str, element: str) -> str:
        """The array without the element."""
        return f"array_remove({array}, {element})"

    def has_others(self, array: str, elements: str) -> str:
        """Whether the array contains an element that the other array lacks; not true for NULL."""
        return f"coalesce(size(array_except({array}, {elements})), 0) > 0"

    def one_of_each(self, count: str) -> str:
        """An expression in a SELECT list that repeats the row as often as this whole number."""
        return f"explode(sequence(1L, {count}))"


class DataFusionSql(Dialect):
    """The dialect of DataFusion, the engine of delta-rs."""

    def name(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def text(self, value: str) -> str:
        return "'" + value.replace("'", "''") + "'"

    def time(self, value: datetime) -> str:
        utc = value.astimezone(UTC).replace(tzinfo=None)
        return f"arrow_cast({_microseconds(utc)}, 'Timestamp(Microsecond, Some(\"UTC\"))')"

    def clock_time(self, value: datetime) -> str:
        return f"arrow_cast({_microseconds(value)}, 'Timestamp(Microsecond, None)')"

    def array(self, elements: Sequence[str]) -> str:
        return f"make_array({', '.join(elements)})"

    def has(self, array: str, element: str) -> str:
        return f"array_has({array}, {element})"

    def without(self, array: str, element: str) -> str:
        return f"array_remove_all({array}, {element})"

    def has_others(self, array: str, elements: str) -> str:
        return f"coalesce(array_length(array_except({array}, {elements})), 0) > 0"

    def one_of_each(self, count: str) -> str:
        return f"unnest(range(0, {count}))"


def literal(dialect: Dialect, value: Any, target: str) -> str:
    """A value as Arrow gives it to Python, as an SQL expression of the Delta type."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return dialect.text(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        return dialect.time(value) if value.tzinfo is not None else dialect.clock_time(value)
    if isinstance(value, list):
        return dialect.array([literal(dialect, element, target[len("array<") : -1]) for element in value])
    text = value.isoformat() if isinstance(value, date) else str(value)
    return f"CAST('{text}' AS {target})"


def _microseconds(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)
