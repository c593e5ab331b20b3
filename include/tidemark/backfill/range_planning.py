"""Divides what a backfill reads into ranges: a whole table by sampled bounds, or the keys that a form chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from tidemark.errors import BackfillRefused
from tidemark.ledger.reading.backfills import Key, Range
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.rows import key_ranges
from tidemark.source.rows.key_ranges import TableToRead
from tidemark.wording import counted

# More ranges than readers, so that a reader that finishes early can read another range.
RANGES_PER_READER: Final = 4
KEYS_PER_RANGE: Final = 1000

_PARAMETER_TEXT = str | int | float


def ranges_of(source: psycopg.Connection[Any], to_read: TableToRead, most: int) -> tuple[Range, ...]:
    """The whole table in at most `most` ranges; one range if its key has no order."""
    cuts = key_ranges.sampled_bounds(source, to_read, most) if to_read.is_walked else []
    return tuple(Range(lower, upper) for lower, upper in zip([None, *cuts], [*cuts, None], strict=True))


def ranges_of_keys(alike: Sequence[Sequence[Key]]) -> tuple[Range, ...]:
    """The ranges of chosen keys. Equal keys are in one range: otherwise two ranges would read the same row, and a
    merge requires that no two ranges have a row in common. No equal key is left out, because the target may have
    the row under any of them."""
    ranges: list[list[Key]] = [[]]
    for keys in alike:
        if ranges[-1] and len(ranges[-1]) + len(keys) > KEYS_PER_RANGE:
            ranges.append([])
        ranges[-1] += keys
    return tuple(Range(keys=tuple(keys)) for keys in ranges)


def chosen_keys(
    source: psycopg.Connection[Any], captured: CapturedTable, chosen: Sequence[Mapping[str, Any] | Sequence[Any]]
) -> list[Key]:
    """The keys that a form chose, in PostgreSQL's output form and each once. Raises BackfillRefused, which names a key
    by its number only."""
    table = str(captured.table)
    if not captured.key:
        raise BackfillRefused(table=table, reason="it has no key")
    if not chosen:
        raise BackfillRefused(table=table, reason="mode keys needs keys")
    keys = [_texts(table, captured.key, number, key) for number, key in enumerate(chosen, 1)]
    with source.transaction():
        columns = key_ranges.table_to_read(source, captured).key
    canonical: list[Key] = []
    for cut in range(0, len(keys), KEYS_PER_RANGE):
        some_keys = keys[cut : cut + KEYS_PER_RANGE]
        try:
            canonical += key_ranges.canonical_keys(source, columns, some_keys)
        except psycopg.errors.DataError:
            for number, one in enumerate(some_keys, cut + 1):
                _try_key(source, table, columns, number, one)
            raise
    return list(dict.fromkeys(canonical))


def _try_key(
    source: psycopg.Connection[Any], table: str, columns: Sequence[key_ranges.KeyColumn], number: int, values: Key
) -> None:
    """Raises BackfillRefused if the key's values do not fit the types of its columns."""
    try:
        key_ranges.canonical_keys(source, columns, [values])
    except psycopg.errors.DataError as wrong:
        names = ", ".join(f"{column.name} ({column.type})" for column in columns)
        reason = f"key {number} is no value of {names} (SQLSTATE {wrong.sqlstate})"
        raise BackfillRefused(table=table, reason=reason) from None


def _texts(table: str, columns: tuple[str, ...], number: int, values_given: Mapping[str, Any] | Sequence[Any]) -> Key:
    """One key of the form as texts in the key's order. Raises BackfillRefused."""
    if isinstance(values_given, Mapping):
        if set(values_given) != set(columns):
            raise BackfillRefused(table=table, reason=f"key {number} must have the columns {', '.join(columns)}")
        values = [values_given[column] for column in columns]
    else:
        values = [values_given] if isinstance(values_given, str) else list(values_given)
        if len(values) != len(columns):
            raise BackfillRefused(table=table, reason=f"key {number} must have {counted(len(columns), 'value')}")
    if any(isinstance(value, bool | None) or not isinstance(value, _PARAMETER_TEXT) for value in values):
        raise BackfillRefused(table=table, reason=f"key {number} must hold texts or numbers")
    return tuple(str(value) for value in values)
