"""Applies Debezium's change events, in order, to rows by key, as a consumer of its topics would.

A line is `key TAB value`, both as Kafka Connect's JSON converter writes them with schemas. Rows of a topic whose events
have no key are a multiset: an update and a delete take one row that equals `before`. A column that an event's schema
has for the first time gets the schema's default in the rows that are there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Field = Mapping[str, Any]
Row = dict[str, Any]

# What stands for a large value that an update left as it was: PostgreSQL does not send it.
UNCHANGED: Final = "__debezium_unavailable_value"
# The same in a column of bytes, in Base64.
UNCHANGED_BYTES: Final = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
_PAYLOAD: Final = '},"payload":{'


def is_unchanged(value: object) -> bool:
    return value in (UNCHANGED, UNCHANGED_BYTES) or (value == [UNCHANGED])


@dataclass
class PeerTable:
    """`key` names the columns of the events' keys, none if they have none. `keyed` and `unkeyed` hold the rows, the
    latter as JSON texts. `missed` counts updates and deletes whose row is not there."""

    fields: dict[str, Field] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    keyed: dict[str, Row] = field(default_factory=dict)
    unkeyed: Counter[str] = field(default_factory=Counter)
    events: int = 0
    missed: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    def rows(self) -> list[Row]:
        return [*self.keyed.values(), *map(json.loads, self.unkeyed.elements())]

    def apply(self, op: str, key: Row | None, before: Row | None, after: Row | None) -> None:
        """Apply one event: `r` or `c`, `u`, `d` or `t`."""
        self.events += 1
        self.operations[op] += 1
        if op == "t":
            self.keyed.clear()
            self.unkeyed.clear()
        elif key is not None:
            self._apply_by_key(op, key, after)
        else:
            self._apply_by_row(op, before, after)

    def evolve(self, fields: dict[str, Field], key: tuple[str, ...]) -> None:
        """Give the rows the columns of a new schema, and put them under a new key."""
        if fields == self.fields and key == self.key:
            return
        held = [{name: row.get(name, one.get("default")) for name, one in fields.items()} for row in self.rows()]
        self.fields, self.key = fields, key
        self.keyed, self.unkeyed = {}, Counter()
        for row in held:
            self._put({name: row.get(name) for name in key} if key else None, row)

    def _put(self, key: Row | None, row: Row) -> None:
        if key is None:
            self.unkeyed[_text(row)] += 1
        else:
            self.keyed[_text(key)] = row

    def _apply_by_key(self, op: str, key: Row, after: Row | None) -> None:
        place = _text(key)
        if op == "d":
            self.missed += self.keyed.pop(place, None) is None
            return
        assert after is not None
        held = self.keyed.get(place)
        self.missed += op == "u" and held is None
        self.keyed[place] = _completed(after, held)

    def _apply_by_row(self, op: str, before: Row | None, after: Row | None) -> None:
        if op in ("u", "d"):
            place = _text(before or {})
            if self.unkeyed[place] > 0:
                self.unkeyed[place] -= 1
            else:
                self.missed += 1
        if op != "d":
            assert after is not None
            self.unkeyed[_text(_completed(after, before))] += 1


@dataclass
class ChangeEvents:
    """The tables of all events so far, by `schema.table`. `markers` has the ids in the table of markers."""

    marker_table: str
    tables: dict[str, PeerTable] = field(default_factory=dict)
    markers: set[int] = field(default_factory=set)
    _schemas: dict[str, dict[str, Field]] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Apply one line of the engine."""
        key_text, _, value_text = line.partition("\t")
        schema_text, _, payload_text = value_text.partition(_PAYLOAD)
        event = json.loads("{" + payload_text[:-1])
        source = event.get("source")
        if source is None or "table" not in source:
            return  # of a transaction or a heartbeat
        name = f"{source['schema']}.{source['table']}"
        if name == self.marker_table:
            self.markers.add(event["after"]["id"])
            return
        table = self.tables.setdefault(name, PeerTable())
        key = json.loads(key_text)["payload"] if key_text else None
        if event["op"] != "t":  # which has no key, whether or not the table has one
            table.evolve(self._fields(schema_text), tuple(key or ()))
        table.apply(event["op"], key, event.get("before"), event.get("after"))

    def _fields(self, schema_text: str) -> dict[str, Field]:
        """The columns in a value's schema, by name."""
        fields = self._schemas.get(schema_text)
        if fields is None:
            schema = json.loads(schema_text.removeprefix('{"schema":') + "}")
            (after,) = (one for one in schema["fields"] if one["field"] == "after")
            fields = self._schemas[schema_text] = {one["field"]: one for one in after["fields"]}
        return fields


def _completed(after: Row, held: Row | None) -> Row:
    """The new row, with the held values where the event says that they are as before."""
    return {name: (held or {}).get(name, value) if is_unchanged(value) else value for name, value in after.items()}


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True)
