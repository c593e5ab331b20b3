"""Streams recorded from PostgreSQL 16 and 18 (record.py, workload.sql), decoded again.

Two judges: the twin in tests.support.pgoutput, which reads one value at a time, and PostgreSQL's own final table
contents."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import pgoutput, servers
from tests.support.thorough import thorough
from tidemark.errors import MalformedMessage
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.pgoutput.decoder import Decoder
from tidemark.pgoutput.messages import RelationMessage, parse_relation
from tidemark.schema.delta_types import PgType, target_type, type_name
from tidemark.schema.table import Column, TableSchema

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.json"))
NOT_CAPTURED = TableName("public", "other")


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(request.param.read_text())
    raw["messages"] = [bytes.fromhex(message) for message in raw["messages"]]
    raw["types"] = {row[0]: PgType(*row) for row in raw["types"]}
    return raw


def key_of(message: RelationMessage) -> list[str] | None:
    """What the catalogue would add: under FULL the primary key, where there is one."""
    return ["id"] if message.table.name in ("full_document", "filtered") else None


def as_text(message: RelationMessage) -> TableSchema | None:
    return None if message.table == NOT_CAPTURED else pgoutput.text_schema(message, key=key_of(message))


def typed(types: dict[int, PgType]) -> Callable[[RelationMessage], TableSchema | None]:
    def schema_for(message: RelationMessage) -> TableSchema | None:
        plain = as_text(message)
        if plain is None:
            return None
        columns = tuple(
            Column(
                c.name,
                type_name(c.type_oid, c.typmod, types),
                c.type_oid,
                c.typmod,
                target_type(c.type_oid, c.typmod, types),
            )
            for c in plain.columns
        )
        return TableSchema(plain.table, 1, plain.relation_oid, plain.identity, plain.key, columns)

    return schema_for


def rows_by_table(blocks: list[DecodedBlock]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for block in blocks:
        for change in block.changes:
            rows.setdefault(str(change.schema.table), []).extend(change.rows.to_pylist())
    return rows


def expected_rows(messages: list[bytes]) -> dict[str, list[dict[str, Any]]]:
    """What the twin makes of the stream."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for change in pgoutput.read(messages):
        schema = as_text(parse_relation(change.relation))
        if schema is not None:
            rows.setdefault(str(schema.table), []).append(pgoutput.staged(change, schema))
    return rows


def without_constants(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    left_out = ("_generation", "_committed_at")
    return {table: [{k: v for k, v in row.items() if k not in left_out} for row in own] for table, own in rows.items()}


def apply(rows: list[dict[str, Any]], columns: list[str], key: tuple[str, ...]) -> list[list[Any]]:
    """The table that its changes make, in twenty lines. Without a key it is a multiset."""
    table: dict[Any, dict[str, Any]] = {}
    bag: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        new = {column: row.get(column) for column in columns}
        if row["_op"] == "truncate":
            table.clear()
            bag.clear()
        elif key:
            at = tuple(row[k] for k in key)
            before = tuple((row["_old_key"] or row)[k] for k in key)
            base = table.pop(before, {}) if row["_op"] != "insert" else {}
            if row["_op"] != "delete":
                table[at] = new | {name: base[name] for name in row["_unchanged"] or ()}
        else:
            if row.get("_old") is not None:
                bag[tuple(row["_old"].get(c) for c in columns)] -= 1
            if row["_op"] != "delete":
                bag[tuple(new.values())] += 1
    return [list(row.values()) for row in table.values()] + [list(row) for row in bag.elements()]


def in_order(rows: list[list[Any]]) -> list[str]:
    return sorted(json.dumps(row) for row in rows)


def test_there_is_a_recording_of_each_version() -> None:
    assert [json.loads(path.read_text())["server"] // 10000 for path in RECORDINGS] == [*servers.VERSIONS]


def test_the_stream_decodes_to_what_its_twin_reads(recording: dict[str, Any]) -> None:
    messages = recording["messages"]
    block = Decoder(as_text, 3).decode(messages)
    assert without_constants(rows_by_table([block])) == expected_rows(messages)
    assert {row["_generation"] for rows in rows_by_table([block]).values() for row in rows} == {3}


def test_where_blocks_end_makes_no_difference(recording: dict[str, Any]) -> None:
    messages = recording["messages"]
    whole = rows_by_table([Decoder(as_text, 1).decode(messages)])
    for size in (1, 2, 3, 7, 50):
        decoder = Decoder(as_text, 1)
        blocks = [decoder.decode(messages[i : i + size]) for i in range(0, len(messages), size)]
        assert rows_by_table(blocks) == whole
        assert sum(len(b.commits) for b in blocks) == sum(m.startswith(b"C") for m in messages)


def test_the_changes_make_the_table_that_postgresql_has(recording: dict[str, Any]) -> None:
    block = Decoder(as_text, 1).decode(recording["messages"])
    keys = {str(change.schema.table): change.schema.key for change in block.changes}
    rows = rows_by_table([block])
    # The server describes the leaves of a partitioned table too, and sends their changes as the root's.
    assert set(recording["tables"]) - set(rows) == {str(NOT_CAPTURED), "public.measure_old", "public.measure_new"}
    for table, own in rows.items():
        contents = recording["tables"][table]
        assert in_order(apply(own, contents["columns"], keys[table])) == in_order(contents["rows"]), table


def test_the_typed_stream_counts_every_value_that_does_not_fit(recording: dict[str, Any]) -> None:
    block = Decoder(typed(recording["types"]), 1).decode(recording["messages"])
    item = [change for change in block.changes if change.schema.table.name == "item"]
    first = item[0].rows.to_pylist()[0]
    assert (first["id"], str(first["price"]), first["lists"], first["raw"]) == (1, "1.10", [1, None], b"\x00\xff")
    converted: Counter[str] = Counter()
    for change in item:
        converted.update(change.converted)
    assert converted == {"changed": 4}  # infinity and BC, each inserted and sent again by an update
    assert all(not change.key_unfit for change in block.changes)
    versions = [[c.type for c in change.schema.columns if c.name == "amount"] for change in item]
    assert versions[0] != versions[-1] == ["bigint"]


def test_logical_messages_come_with_their_transaction(recording: dict[str, Any]) -> None:
    messages = Decoder(as_text, 1).decode(recording["messages"]).messages
    assert [(m.prefix, m.content, m.transactional) for m in messages] == [
        ("aside", b"now", False),
        ("tidemark", b"first", True),
        ("other", b"\x00\xff", True),
        ("aside", b"alone", False),
    ]
    assert [m.commit_lsn is not None for m in messages] == [False, True, True, False]


def test_a_split_block_is_two_halves_of_the_whole(recording: dict[str, Any]) -> None:
    block = Decoder(as_text, 1).decode(recording["messages"])
    whole = rows_by_table([block])
    for cut in block.commits.commit_lsn.tolist():
        below, above = block.split(Lsn(cut))
        assert (below.commits.commit_lsn < cut).all()
        assert (above.commits.commit_lsn >= cut).all()
        halves = rows_by_table([below]), rows_by_table([above])
        assert all(row["_commit_lsn"] < cut for rows in halves[0].values() for row in rows)
        assert all(row["_commit_lsn"] >= cut for rows in halves[1].values() for row in rows)
        assert {t: halves[0].get(t, []) + halves[1].get(t, []) for t in whole} == whole
        assert sorted(below.messages + above.messages, key=lambda m: m.lsn) == sorted(
            block.messages, key=lambda m: m.lsn
        )
        for name in ("unchanged", "moved"):
            both = [sum(getattr(change, name) for change in half.changes) for half in (below, above)]
            assert sum(both) == sum(getattr(change, name) for change in block.changes)


def twin(decoder: Decoder) -> Decoder:
    """A decoder in the same state that goes its own way; quicker than a deep copy."""
    other = copy.copy(decoder)
    vars(other).update({name: dict(value) for name, value in vars(decoder).items() if isinstance(value, dict)})
    return other


@pytest.mark.parametrize(
    "recording", [*thorough(*RECORDINGS[:-1]), RECORDINGS[-1]], indirect=True, ids=lambda path: path.stem
)
def test_every_message_cut_at_any_byte_or_lengthened_raises(recording: dict[str, Any]) -> None:
    """Alone, and with the messages behind it in the same block, so that what is missing could be taken from them."""
    messages = recording["messages"]
    decoder = Decoder(as_text, 1)
    for i, message in enumerate(messages):
        # Inside a long value one cut is like another.
        lengths = range(len(message)) if len(message) < 500 else [*range(250), *range(250, len(message), 97)]
        cuts = [message[:length] for length in lengths]
        for broken in [*cuts, message + b"\0"]:
            for behind in ([], messages[i + 1 : i + 3]):
                with pytest.raises(MalformedMessage):
                    twin(decoder).decode([broken, *behind])
        decoder.decode([message])
