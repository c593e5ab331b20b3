"""The decoder against hand-built messages, and against its twin on random streams."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support import pgoutput as wire
from tests.support.pgoutput import UNCHANGED
from tidemark.errors import MalformedMessage, MaskWithoutSalt, SchemaDisagrees
from tidemark.formats.columns import staged_schema
from tidemark.lsn import Lsn
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.pgoutput.decoder import Decoder
from tidemark.pgoutput.messages import RelationMessage, parse_relation
from tidemark.schema import values
from tidemark.schema.table import TableSchema


def decode(schema: TableSchema, *changes: bytes, identity: str = "d", salt: bytes | None = None) -> DecodedBlock:
    """One transaction of one table."""
    names = [c.name for c in schema.columns]
    relation = wire.relation(1, names, key=schema.key, identity=identity)
    return Decoder(lambda _: schema, 1, salt).decode([wire.begin(100), relation, *changes, wire.commit(100)])


def only_rows(block: DecodedBlock) -> list[dict[str, Any]]:
    (table,) = block.changes
    return table.rows.to_pylist()


def as_text(message: RelationMessage) -> TableSchema:
    """Every column as text; the table t5 has a primary key, c0, under FULL."""
    return wire.text_schema(message, key=["c0"] if message.table.name == "t5" else None)


def test_rows_follow_the_staged_schema_and_carry_the_transaction() -> None:
    schema = wire.schema({"id": "int", "v": "string"}, key=["id"])
    relation = wire.relation(1, ["id", "v"], key=["id"])
    decoder = Decoder(lambda _: schema, generation=7)
    block = decoder.decode(
        [wire.begin(100, time=1_000_000, xid=9), relation, wire.insert(1, ["1", "a"]), wire.commit(100, end_lsn=164)]
    )
    (table,) = block.changes
    assert table.rows.schema.equals(staged_schema(schema))
    (row,) = table.rows.to_pylist()
    assert row["_committed_at"].isoformat() == "2000-01-01T00:00:01+00:00"
    del row["_committed_at"]
    assert row == {
        "_generation": 7,
        "_commit_lsn": 100,
        "_ordinal": 0,
        "_xid": 9,
        "_op": "insert",
        "id": 1,
        "v": "a",
        "_old_key": None,
        "_unchanged": None,
        "_text": None,
    }
    commits = block.commits
    assert (commits.commit_lsn.tolist(), commits.end_lsn.tolist(), commits.xid32.tolist()) == ([100], [164], [9])
    assert commits.committed_at.tolist() == [946_684_801_000_000]


def test_ordinals_count_changes_of_tables_that_are_not_captured() -> None:
    relations = [wire.relation(1, ["id"], key=["id"]), wire.relation(2, ["id"], key=["id"], name="other")]
    decoder = Decoder(lambda m: None if m.table.name == "other" else wire.text_schema(m), 1)
    changes = [
        wire.insert(2, ["x"]),
        wire.insert(1, ["a"]),
        wire.truncate(2, 1),
        wire.delete(2, key=["x"]),
        wire.insert(1, ["b"]),
    ]
    block = decoder.decode([wire.begin(8), *relations, *changes, wire.commit(8)])
    assert [(r["_op"], r["_ordinal"]) for r in only_rows(block)] == [("insert", 1), ("truncate", 3), ("insert", 5)]


def test_ordinals_and_transaction_go_on_in_the_next_block() -> None:
    decoder = Decoder(as_text, 1)
    first = decoder.decode([wire.begin(8, xid=5), wire.relation(1, ["id"], key=["id"]), wire.insert(1, ["a"])])
    assert len(first.commits) == 0
    assert decoder.decode([]).changes == ()
    second = decoder.decode([wire.insert(1, ["b"]), wire.commit(8), wire.begin(32), wire.insert(1, ["c"])])
    assert [(r["_commit_lsn"], r["_ordinal"], r["_xid"]) for r in only_rows(second)] == [(8, 1, 5), (32, 0, 700)]
    assert second.commits.xid32.tolist() == [5]


def test_xids_are_widened_to_the_id_nearest_to_the_reference() -> None:
    decoder = Decoder(as_text, 1, next_xid=2**32 + 100)
    messages = [wire.begin(8, xid=2**32 - 1), wire.relation(1, ["id"]), wire.insert(1, ["a"]), wire.commit(8)]
    block = decoder.decode([*messages, wire.begin(32, xid=99), wire.insert(1, ["b"]), wire.commit(32)])
    assert [r["_xid"] for r in only_rows(block)] == [2**32 - 1, 2**32 + 99]
    assert block.commits.xid32.tolist() == [2**32 - 1, 99]


def test_an_unchanged_value_is_a_mask_and_never_a_value() -> None:
    schema = wire.schema({"id": "int", "a": "string", "b": "string"}, key=["id"])
    block = decode(
        schema,
        wire.update(1, ["1", UNCHANGED, UNCHANGED]),
        wire.update(1, ["1", None, UNCHANGED]),
        wire.update(1, ["1", "x", "y"]),
    )
    assert [(r["a"], r["b"], r["_unchanged"]) for r in only_rows(block)] == [
        (None, None, ["a", "b"]),
        (None, None, ["b"]),
        ("x", "y", None),
    ]
    assert block.changes[0].unchanged == 2


def test_full_old_tuples_fill_unchanged_values_with_null_too() -> None:
    schema = wire.schema({"id": "int", "a": "string", "b": "string"}, key=["id"], identity="full")
    changes = [
        wire.update(1, ["1", UNCHANGED, UNCHANGED], old=["1", "kept", None]),
        wire.delete(1, old=["1", "gone", "gone"]),
    ]
    block = decode(schema, *changes, identity="f")
    assert [(r["id"], r["a"], r["b"], r["_unchanged"]) for r in only_rows(block)] == [
        (1, "kept", None, None),
        (1, None, None, None),
    ]


@pytest.mark.parametrize("identity", ["d", "f"])
def test_an_old_row_without_a_value_is_refused(identity: str) -> None:
    """Such a value would be taken for NULL: in the key that moved, or in the row that a table without key removes."""
    schemas = [
        wire.schema({"id": "int", "a": "string"}, key=key, identity="full" if identity == "f" else "default")
        for key in ([["id"], []] if identity == "f" else [["id"]])
    ]
    changes = [
        wire.update(1, ["1", "b"], old=[UNCHANGED, "a"]),
        wire.update(1, ["1", "b"], old=["1", UNCHANGED]),
        wire.delete(1, old=["1", UNCHANGED]),
        wire.delete(1, key=[UNCHANGED, None]),
    ]
    for schema in schemas:
        for change in changes:
            with pytest.raises(MalformedMessage, match="an old row of relation 1 has an unchanged value"):
                decode(schema, change, identity=identity)


def test_a_key_tuple_is_read_through_the_key_only() -> None:
    schema = wire.schema({"a": "int", "v": "string", "b": "string"}, key=["b", "a"])
    changes = [
        wire.update(1, ["1", UNCHANGED, "y"], key=["1", None, "x"]),
        wire.delete(1, key=["1", None, "y"]),
    ]
    moved, deleted = only_rows(decode(schema, *changes))
    assert (moved["a"], moved["v"], moved["b"], moved["_unchanged"]) == (1, None, "y", ["v"])
    assert moved["_old_key"] == {"b": "x", "a": 1}
    assert (deleted["a"], deleted["v"], deleted["b"], deleted["_old_key"]) == (1, None, "y", None)


def test_a_key_that_is_sent_but_did_not_change_is_no_move() -> None:
    """PostgreSQL sends the old key whenever a key value lies in TOAST, and under FULL always."""
    schema = wire.schema({"id": "string", "v": "string"}, key=["id"])
    block = decode(
        schema, wire.update(1, [UNCHANGED, "x"], key=["long", None]), wire.update(1, ["k", "x"], key=["k", None])
    )
    assert [(r["id"], r["_old_key"], r["_unchanged"]) for r in only_rows(block)] == [
        ("long", None, None),
        ("k", None, None),
    ]
    assert block.changes[0].moved == 0
    full = wire.schema({"id": "string", "v": "string"}, key=["id"], identity="full")
    block = decode(
        full, wire.update(1, ["a", "x"], old=["a", "w"]), wire.update(1, ["b", "x"], old=["a", "x"]), identity="f"
    )
    assert [r["_old_key"] for r in only_rows(block)] == [None, {"id": "a"}]
    assert block.changes[0].moved == 1


def test_a_key_of_equal_length_and_other_bytes_is_a_move() -> None:
    schema = wire.schema({"a": "int", "b": "int"}, key=["a", "b"])
    block = decode(schema, wire.update(1, ["1", "3"], key=["1", "2"]))
    assert only_rows(block)[0]["_old_key"] == {"a": 1, "b": 2}


def test_without_key_and_under_full_the_whole_old_row_comes_along() -> None:
    schema = wire.schema({"a": "int", "d": "date"}, identity="full")
    changes = [
        wire.insert(1, ["1", "infinity"]),
        wire.update(1, ["2", UNCHANGED], old=["1", "infinity"]),
        wire.delete(1, old=["2", "-infinity"]),
        wire.truncate(1),
    ]
    (table,) = (block := decode(schema, *changes, identity="f")).changes
    rows = only_rows(block)
    assert [str(r["d"]) for r in rows] == ["9999-12-31", "9999-12-31", "None", "None"]
    assert [r["_old"] and (r["_old"]["a"], str(r["_old"]["d"])) for r in rows] == [
        None,
        (1, "9999-12-31"),
        (2, "0001-01-01"),
        None,
    ]
    assert [r["_text"] for r in rows] == [
        [("d", "infinity")],
        [("d", "infinity"), ("_old.d", "infinity")],
        [("d", "-infinity")],
        None,
    ]
    assert table.converted == {"d": 3}
    assert "_old_key" not in table.rows.schema.names


def test_a_keyless_change_without_its_old_row_is_malformed() -> None:
    schema = wire.schema({"a": "int"}, identity="full")
    with pytest.raises(MalformedMessage, match="lacks the old row"):
        decode(schema, wire.update(1, ["2"]), identity="f")
    with pytest.raises(MalformedMessage, match="lacks the old row"):
        decode(schema, wire.delete(1, key=["2"]), identity="f")


def test_values_that_do_not_fit_are_text_and_counted() -> None:
    schema = wire.schema({"id": "int", "n": "decimal(5,2)", "t": "timestamp_ntz", "m": "string"}, key=["id"])
    block = decode(
        schema,
        wire.insert(1, ["1", "NaN", "infinity", "x"]),
        wire.insert(1, ["2", "1.10", "0044-03-15 00:00:00 BC", None]),
        wire.insert(1, ["3", "123.45", "2024-01-01 00:00:00", None]),
    )
    rows = only_rows(block)
    assert [r["_text"] and dict(r["_text"]) for r in rows] == [
        {"n": "NaN", "t": "infinity"},
        {"t": "0044-03-15 00:00:00 BC"},
        None,
    ]
    assert [str(r["n"]) for r in rows] == ["None", "1.10", "123.45"]
    assert [str(r["t"]) for r in rows] == ["9999-12-31 23:59:59.999999", "0001-01-01 00:00:00", "2024-01-01 00:00:00"]
    assert block.changes[0].converted == {"n": 1, "t": 2}
    assert block.changes[0].key_unfit == ()


def test_a_key_that_does_not_fit_is_reported_and_never_clamped() -> None:
    schema = wire.schema({"at": "timestamp_ntz", "id": "int"}, key=["at", "id"])
    early, late = "2024-01-01 00:00:00", "infinity"
    for change, text in (
        (wire.insert(1, [late, "1"]), [("at", late)]),
        (wire.delete(1, key=[late, "1"]), [("at", late)]),
        (wire.update(1, [early, "1"], key=[late, "1"]), [("_old_key.at", late)]),
        (wire.insert(1, [None, "1"]), None),
    ):
        block = decode(schema, wire.insert(1, [early, "1"]), wire.truncate(1), change)
        assert block.changes[0].key_unfit == ("at",)
        assert block.changes[0].key_null == (() if text else ("at",))
        last = only_rows(block)[-1]
        assert (last["_old_key"] or last)["at"] is None
        assert last["_text"] == text
        assert block.changes[0].converted == ({"at": 1} if text and text[0][0] == "at" else {})
    assert decode(schema, wire.insert(1, [early, "1"]), wire.truncate(1)).changes[0].key_unfit == ()


def test_a_truncate_stands_among_the_changes_in_order() -> None:
    schema = wire.schema({"id": "int", "v": "string"}, key=["id"])
    block = decode(schema, wire.insert(1, ["1", "a"]), wire.truncate(1), wire.insert(1, ["2", "b"]), wire.truncate(1))
    assert [(r["_op"], r["_ordinal"], r["id"]) for r in only_rows(block)] == [
        ("insert", 0, 1),
        ("truncate", 1, None),
        ("insert", 2, 2),
        ("truncate", 3, None),
    ]
    assert block.changes[0].counts == {"insert": 2, "truncate": 2}
    assert [r["_op"] for r in only_rows(decode(schema, wire.truncate(1)))] == ["truncate"]


def test_a_relation_redefined_inside_a_block_splits_it() -> None:
    relations_asked: list[RelationMessage] = []

    def schema_for(message: RelationMessage) -> TableSchema:
        relations_asked.append(message)
        return wire.text_schema(message, version=len(relations_asked))

    old, new = wire.relation(1, ["id", "a"], key=["id"]), wire.relation(1, ["id", "b", "a"], key=["id"])
    other = wire.relation(2, ["id"], key=["id"], name="other")
    messages = [
        wire.begin(8),
        old,
        other,
        wire.insert(1, ["1", "a"]),
        wire.truncate(2),
        old,
        wire.insert(2, ["x"]),
        new,
        wire.insert(1, ["2", "b", "a"]),
        wire.insert(2, ["y"]),
        wire.commit(8),
    ]
    block = Decoder(schema_for, 1).decode(messages)
    assert len(relations_asked) == 3  # the message that repeats what is known asks nothing
    pieces = [(c.schema.table.name, c.schema.version, c.rows.column("_ordinal").to_pylist()) for c in block.changes]
    assert pieces == [("t", 1, [0]), ("other", 2, [1, 2]), ("t", 3, [3]), ("other", 2, [4])]


def test_columns_left_out_are_passed_over() -> None:
    relation = wire.relation(1, ["secret", "id", "v"], key=["id"])
    decoder = Decoder(lambda m: wire.text_schema(m, leave_out=["secret"]), 1)
    changes = [wire.insert(1, ["s3cret", "1", "a"]), wire.update(1, [UNCHANGED, "1", "b"])]
    rows = only_rows(decoder.decode([wire.begin(8), relation, *changes, wire.commit(8)]))
    assert [(r["id"], r["v"], r["_unchanged"]) for r in rows] == [("1", "a", None), ("1", "b", None)]
    assert "secret" not in rows[0]


def test_masked_columns_never_show_their_text() -> None:
    schema = wire.schema(
        {"id": "int", "mail": "string", "born": "date"}, key=["id"], masks={"mail": "sha256", "born": "null"}
    )
    block = decode(schema, wire.insert(1, ["1", "a@b", "infinity"]), wire.insert(1, ["2", None, None]), salt=b"salt")
    rows = only_rows(block)
    assert [(r["mail"], r["born"], r["_text"]) for r in rows] == [
        ("11e9132f813610b7d6694eeaab04e88b87fdafbc83843f2963ed386737850f98", None, None),
        (None, None, None),
    ]
    with pytest.raises(MaskWithoutSalt):
        decode(schema, salt=None)


def test_masks_hold_for_old_rows_too() -> None:
    schema = wire.schema({"a": "int", "mail": "string"}, identity="full", masks={"mail": "sha256"})
    block = decode(schema, wire.delete(1, old=["1", "a@b"]), identity="f", salt=b"salt")
    assert len(only_rows(block)[0]["_old"]["mail"]) == 64


@pytest.mark.parametrize(
    "schema",
    [
        wire.schema({"id": "int", "gone": "string"}, key=["id"]),
        wire.schema({"id": "int"}, key=["id"], identity="full"),
        wire.schema({"id": "int", "v": "string"}, key=["v"]),
        wire.schema({"id": "int", "v": "int"}, key=["id"], masks={"v": "sha256"}),
    ],
    ids=["column", "identity", "key", "mask"],
)
def test_a_definition_that_does_not_follow_the_stream_is_refused(schema: TableSchema) -> None:
    decoder = Decoder(lambda _: schema, 1, b"salt")
    with pytest.raises(SchemaDisagrees):
        decoder.decode([wire.begin(8), wire.relation(1, ["id", "v"], key=["id"])])


BEGIN, COMMIT = wire.begin(8), wire.commit(8)
RELATION = wire.relation(1, ["id", "v"], key=["id"])
INSERT = wire.insert(1, ["1", "a"])


@pytest.mark.parametrize(
    ("messages", "detail"),
    [
        ([b""], "an empty message"),
        ([b"S\0\0\0\1\1"], "unknown kind 0x53"),
        ([BEGIN, wire.begin(16)], "do not alternate"),
        ([COMMIT], "do not alternate"),
        ([BEGIN, COMMIT, COMMIT], "do not alternate"),
        ([BEGIN, wire.commit(9)], "does not belong"),
        ([BEGIN, COMMIT[:1] + b"\1" + COMMIT[2:]], "does not belong"),
        ([BEGIN, wire.commit(8, end_lsn=8)], "ends before its commit record"),
        ([BEGIN, COMMIT, wire.begin(8)], "do not ascend"),
        ([RELATION], "outside a transaction"),
        ([BEGIN, RELATION, COMMIT, INSERT], "outside a transaction"),
        ([BEGIN, COMMIT, wire.logical("p", b"x", lsn=9)], "wrong place"),
        ([BEGIN, INSERT, RELATION], "before its RELATION"),
        ([BEGIN, wire.truncate(1), RELATION], "before its RELATION"),
        ([BEGIN, RELATION, wire.insert(1, ["1"])], "has not the 2 columns"),
        ([BEGIN, RELATION, INSERT[:5]], "before its relation"),
        ([BEGIN, RELATION, INSERT[:7]], "is missing"),
        ([BEGIN, wire.relation(2, [f"c{i}" for i in range(256)]), wire.insert(2, [None] * 256)[:7]], "is missing"),
        ([BEGIN, RELATION, INSERT[:5] + b"X" + INSERT[6:]], "no tuple"),
        ([BEGIN, RELATION, INSERT[:5] + b"K" + INSERT[6:]], "no tuple"),
        ([BEGIN, RELATION, b"D" + INSERT[1:]], "no tuple"),
        ([BEGIN, RELATION, wire.update(1, ["1", "a"], key=["1", None])[:15]], "no new tuple"),
        ([BEGIN, RELATION, wire.update(1, ["1", "a"], key=["1", None]).replace(b"nN", b"nX")], "no new tuple"),
        ([BEGIN, RELATION, INSERT.replace(b"t\0\0\0\1a", b"b\0\0\0\1a")], "neither text"),
        ([BEGIN, RELATION, INSERT.replace(b"t\0\0\0\1a", b"t\xff\xff\xff\xffa")], "ends early"),
        ([BEGIN, RELATION, wire.delete(1, key=["1", None]) + b"x"], "left over"),
        ([BEGIN, RELATION, INSERT + b"x"], "left over"),
        ([BEGIN, RELATION[:-1]], "ends early"),
        ([BEGIN, RELATION + b"x"], "left over"),
        ([BEGIN, b"R\0\0\0\1public"], "without an end"),
        ([BEGIN, RELATION.replace(b"public", b"publi\xff")], "not UTF-8"),
        ([BEGIN, RELATION.replace(b"t\0d", b"t\0x")], "unknown replica identity"),
        ([BEGIN, RELATION, wire.truncate(1, options=4)], "options 4"),
        ([BEGIN, wire.logical("p", b"x", lsn=9)[:-1]], "ends early"),
    ],
)
def test_bytes_that_do_not_follow_the_protocol_raise(messages: list[bytes], detail: str) -> None:
    with pytest.raises(MalformedMessage, match=detail):
        Decoder(as_text, 1).decode(messages)


def test_the_carried_transaction_is_held_to_the_protocol_too() -> None:
    for after, detail in ((wire.begin(16), "alternate"), (wire.commit(9), "does not belong")):
        decoder = Decoder(as_text, 1)
        decoder.decode([BEGIN])
        with pytest.raises(MalformedMessage, match=detail):
            decoder.decode([after])


def test_headers_in_front_of_messages_are_skipped() -> None:
    decoder = Decoder(as_text, 1)
    messages = [BEGIN, RELATION, INSERT, COMMIT]
    block = decoder.decode([memoryview(b"w" + bytes(24) + m) for m in messages], skip=25)
    assert only_rows(block)[0]["v"] == "a"
    with pytest.raises(MalformedMessage, match="empty"):
        decoder.decode([b"w" + bytes(24)], skip=25)


def test_split_counts_each_part_anew() -> None:
    schema = wire.schema({"id": "int", "d": "date", "t": "string"}, key=["id"])
    messages = [wire.begin(8), wire.relation(1, ["id", "d", "t"], key=["id"]), wire.insert(1, ["1", "infinity", "a"])]
    messages += [wire.commit(8), wire.begin(32), wire.update(1, ["2", "infinity", UNCHANGED], key=["1", None, None])]
    messages += [wire.delete(1, key=["9", None, None]), wire.logical("p", b"", lsn=40), wire.commit(32)]
    below, above = Decoder(lambda _: schema, 1).decode(messages).split(Lsn(32))
    assert (below.changes[0].counts, above.changes[0].counts) == ({"insert": 1}, {"update": 1, "delete": 1})
    assert (below.changes[0].moved, above.changes[0].moved) == (0, 1)
    assert (below.changes[0].unchanged, above.changes[0].unchanged) == (0, 1)
    assert (below.changes[0].converted, above.changes[0].converted) == ({"d": 1}, {"d": 1})
    assert (len(below.messages), len(above.messages)) == (0, 1)
    assert (below.commits.commit_lsn.tolist(), above.commits.commit_lsn.tolist()) == ([8], [32])
    nothing, all_of_it = above.split(Lsn(32))
    assert (nothing.changes, nothing.messages, len(nothing.commits)) == ((), (), 0)
    assert all_of_it.changes == above.changes


def test_a_buffer_beyond_two_gigabytes_is_gathered_with_wide_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MAX_OFFSET", 10)
    schema = wire.schema({"id": "int", "v": "string"}, key=["id"])
    block = decode(schema, wire.insert(1, ["1", "abc"]), wire.insert(1, ["2", None]), wire.delete(1, key=["1", None]))
    assert [(r["id"], r["v"]) for r in only_rows(block)] == [(1, "abc"), (2, None), (1, None)]


def random_stream(random_: random.Random) -> list[bytes]:
    """Transactions over five tables of every identity, redefined now and then."""
    tables: dict[int, tuple[list[str], list[str], str]] = {}

    def define(oid: int) -> bytes:
        names = [f"c{i}" for i in range(random_.randint(1, 6))]
        identity = {1: "d", 2: "f", 3: "i", 4: "n", 5: "f"}[oid]
        key = sorted(random_.sample(names, random_.randint(1, len(names)))) if identity in "di" else []
        tables[oid] = (names, key, identity)
        return wire.relation(oid, names, key=key, identity=identity, name=f"t{oid}")

    def value() -> str | None:
        return random_.choice([None, "", "a", "bb", "0", "x" * random_.randint(0, 300), "ä\n"])

    def change(oid: int) -> bytes:
        names, key, identity = tables[oid]
        new = [random_.choice([value(), UNCHANGED]) for _ in names]
        old = [value() for _ in names]
        key_tuple = [random_.choice(["k", "l"]) if n in key else None for n in names]
        new = [random_.choice(["k", "l", UNCHANGED]) if n in key else v for n, v in zip(names, new, strict=True)]
        if all(v is not UNCHANGED for n, v in zip(names, new, strict=True) if n in key) and random_.random() < 0.5:
            plain = wire.update(oid, new)
        else:
            plain = wire.update(oid, new, key=key_tuple)
        if identity == "n":
            return wire.insert(oid, new)
        options = [wire.insert(oid, [None if v is UNCHANGED else v for v in new])]
        if identity == "f":
            options += [wire.update(oid, new, old=old), wire.delete(oid, old=old)]
        else:
            options += [plain, plain, wire.delete(oid, key=key_tuple)]
        return random_.choice(options)

    messages = []
    lsn = 0
    for _ in range(random_.randint(1, 12)):
        lsn += random_.randint(1, 100)
        messages.append(wire.begin(lsn, xid=random_.randrange(2**32)))
        messages += [define(oid) for oid in (1, 2, 3, 4, 5) if oid not in tables]
        for _ in range(random_.randint(0, 12)):
            oid = random_.randint(1, 5)
            dice = random_.random()
            if dice < 0.05:
                messages.append(define(oid))
            elif dice < 0.1:
                messages.append(wire.truncate(*random_.sample([1, 2, 3, 4, 5], random_.randint(1, 5))))
            elif dice < 0.15:
                messages.append(
                    random_.choice([wire.logical("p", b"said", lsn=lsn), wire.origin(lsn), wire.type_of(99)])
                )
            else:
                messages.append(change(oid))
        messages.append(wire.commit(lsn, end_lsn=lsn + random_.randint(1, 50)))
    return messages


@pytest.mark.parametrize("seed", range(80))
def test_a_random_stream_decodes_to_what_its_twin_reads(seed: int) -> None:
    random_ = random.Random(seed)
    messages = random_stream(random_)
    expected: dict[str, list[dict[str, Any]]] = {}
    for change in wire.read(messages):
        schema = as_text(parse_relation(change.relation))
        expected.setdefault(str(schema.table), []).append(wire.staged(change, schema))
    decoder = Decoder(as_text, 1)
    cuts = sorted(random_.sample(range(len(messages) + 1), min(3, len(messages))))
    decoded: dict[str, list[dict[str, Any]]] = {}
    commits = []
    for start, stop in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        block = decoder.decode(messages[start:stop])
        commits += block.commits.commit_lsn.tolist()
        for table in block.changes:
            rows = table.rows.drop_columns(["_generation", "_committed_at"]).to_pylist()
            decoded.setdefault(str(table.schema.table), []).extend(rows)
    assert decoded == expected
    assert commits == [int.from_bytes(m[1:9]) for m in messages if m.startswith(b"B")]


@pytest.mark.parametrize("seed", range(20))
def test_a_random_byte_changed_raises_or_decodes_but_never_crashes(seed: int) -> None:
    random_ = random.Random(seed)
    messages = random_stream(random_)
    for _ in range(25):
        broken = list(messages)
        i = random_.randrange(len(broken))
        data = bytearray(broken[i])
        data[random_.randrange(len(data))] = random_.randrange(256)
        broken[i] = bytes(data)
        try:
            Decoder(as_text, 1).decode(broken)
        except (MalformedMessage, SchemaDisagrees):
            continue


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_relation_whose_changes_come_under_another_ones_number_is_told(cut: int) -> None:
    """A partition, defined right in front of its first change, wherever blocks end; TRUNCATE defines several too."""
    root, leaf = wire.relation(1, ["id"], key=["id"]), wire.relation(2, ["id"], key=["id"], name="leaf")
    other = wire.relation(3, ["id"], key=["id"], name="other")
    row = wire.insert(1, ["1"])
    messages = [wire.begin(100), root, leaf, row, row, other, wire.truncate(1, 3), wire.insert(3, ["1"])]
    told: list[tuple[int, int]] = []
    decoder = Decoder(wire.text_schema, 1, has_other_identity=lambda leaf, oid: told.append((leaf.relation_oid, oid)))
    decoder.decode(messages[:cut])
    decoder.decode(messages[cut:])
    decoder.decode([other, wire.insert(3, ["2"]), wire.commit(100)])
    assert told == [(2, 1)]


@pytest.mark.parametrize("cut", range(9))
def test_a_decoder_that_goes_on_with_a_connection_reads_what_a_new_connection_would_give(cut: int) -> None:
    """The server describes a relation once for each connection; TRUNCATE and a second definition are such uses too."""
    one, two = wire.relation(1, ["id"], key=["id"]), wire.relation(2, ["id"], key=["id"], name="two")
    three = wire.relation(3, ["id"], key=["id"], name="three")
    first = [wire.begin(100), one, two, three, *(wire.insert(oid, ["0"]) for oid in (1, 2, 3)), wire.commit(100)]
    wider = wire.relation(2, ["id", "v"], key=["id"], name="two")
    row, rows = wire.insert(1, ["1"]), [wire.insert(2, ["1"]), wire.insert(2, ["2", "v"])]
    behind = [wire.begin(200), row, rows[0], wider, rows[1], wire.truncate(3), row, wire.commit(200)]
    as_new = [wire.begin(200), one, row, two, rows[0], wider, rows[1], three, wire.truncate(3), row, wire.commit(200)]
    before = Decoder(wire.text_schema, 1)
    before.decode(first)
    went_on = Decoder(wire.text_schema, 1, described=before.described)
    blocks = [went_on.decode([bytes(25) + message for message in part], 25) for part in (behind[:cut], behind[cut:])]
    expected = Decoder(wire.text_schema, 1).decode(as_new)

    def rows_of(*decoded: DecodedBlock) -> list[tuple[str, dict[str, Any]]]:
        changes = [change for block in decoded for change in block.changes]
        told = [(str(change.schema), row) for change in changes for row in change.rows.to_pylist()]
        return sorted(told, key=lambda one: one[1]["_ordinal"])

    assert rows_of(*blocks) == rows_of(expected)
    assert set(went_on.described) == {1, 2, 3}
