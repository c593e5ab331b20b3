"""Which differences of a table are followed, which need a backfill, another shape, which park it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tidemark.names import TableName
from tidemark.schema.evolution import (
    Verdict,
    columns_of,
    compare_fingerprints,
    compare_schemas,
    emptied_by,
    name_taken_by_key,
    reasons,
)
from tidemark.schema.fingerprint import ColumnPrint, Fingerprint, PartitionPrint
from tidemark.schema.table import Column, TableSchema

FOLLOWED, NEEDS_BACKFILL, RESHAPE, PARK = Verdict.FOLLOWED, Verdict.NEEDS_BACKFILL, Verdict.RESHAPE, Verdict.PARK

ID = Column("id", "bigint", 20, -1, "bigint")
NOTE = Column("note", "character varying(10)", 1043, 14, "string")
SCHEMA = TableSchema(TableName("public", "orders"), 1, 16384, "default", ("id",), (ID, NOTE))


def column(attnum: int, name: str, **facts: object) -> ColumnPrint:
    plain = ColumnPrint(attnum, name, 20, -1, False, "", None, xmin=700)
    return replace(plain, **facts)  # type: ignore[arg-type]


PRINT = Fingerprint(
    relation_oid=16384,
    relfilenode=16384,
    last_attnum=3,
    identity="default",
    key=("id",),
    columns=(column(1, "id"), column(3, "note")),
    partitions=(),
    membership=("table 20000",),
    row_filter=None,
    published_columns=("id", "note"),
)


def verdicts(differences: list[object]) -> list[Verdict]:
    return [d.verdict for d in differences]  # type: ignore[attr-defined]


def test_equal_schemas_and_fingerprints_do_not_differ() -> None:
    assert compare_schemas(SCHEMA, replace(SCHEMA, version=2, relation_oid=1)) == []
    assert compare_fingerprints(PRINT, PRINT) == []


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"columns": (ID, NOTE, Column("more", "integer", 23, -1, "int"))}, FOLLOWED),
        ({"columns": (ID,)}, RESHAPE),
        ({"columns": (ID, replace(NOTE, name="remark"))}, RESHAPE),
        ({"columns": (ID, replace(NOTE, type="text", type_oid=25, typmod=-1))}, FOLLOWED),
        ({"columns": (ID, replace(NOTE, type="integer", type_oid=23, target="int"))}, RESHAPE),
        ({"columns": (replace(ID, type="integer", type_oid=23, target="int"), NOTE)}, RESHAPE),
        ({"columns": (ID, replace(NOTE, mask="null"))}, NEEDS_BACKFILL),
        ({"key": ("id", "note")}, RESHAPE),
        ({"key": ()}, RESHAPE),
        ({"identity": "full"}, FOLLOWED),
    ],
)
def test_the_streams_shape_decides(change: dict[str, object], verdict: Verdict) -> None:
    differences = compare_schemas(SCHEMA, replace(SCHEMA, **change))  # type: ignore[arg-type]
    assert verdict in verdicts(list(differences))
    assert max(verdicts(list(differences)), key=list(Verdict).index) is verdict


def test_columns_in_another_order_are_others_unless_their_numbers_say_which() -> None:
    swapped = replace(SCHEMA, version=2, columns=(NOTE, ID))
    assert verdicts(list(compare_schemas(SCHEMA, swapped))) == [NEEDS_BACKFILL]


def test_a_column_that_the_catalogue_calls_dropped_is_followed() -> None:
    narrow = replace(SCHEMA, version=2, columns=(ID,))
    assert verdicts(list(compare_schemas(SCHEMA, narrow, {"note"}))) == [FOLLOWED]
    assert verdicts(list(compare_schemas(SCHEMA, narrow, {"more"}))) == [RESHAPE]
    before, after = (replace(schema, key=(), identity="full") for schema in (SCHEMA, narrow))
    assert verdicts(list(compare_schemas(before, after, {"note"}))) == [FOLLOWED]


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("smallint", "int"),
        ("smallint", "bigint"),
        ("int", "bigint"),
        ("float", "double"),
        ("decimal(6,2)", "decimal(8,2)"),
        ("decimal(6,2)", "decimal(8,4)"),
        ("date", "timestamp_ntz"),
    ],
)
def test_what_delta_can_widen_is_followed_and_not_the_other_way_round(narrow: str, wide: str) -> None:
    old = replace(SCHEMA, columns=(ID, replace(NOTE, target=narrow)))
    new = replace(SCHEMA, columns=(ID, replace(NOTE, target=wide, type_oid=20)))
    assert verdicts(list(compare_schemas(old, new))) == [FOLLOWED]
    assert verdicts(list(compare_schemas(new, old))) == [RESHAPE]


@pytest.mark.parametrize(
    ("old", "new"),
    [("decimal(6,2)", "decimal(6,4)"), ("decimal(6,2)", "decimal(7,4)"), ("int", "double"), ("date", "timestamp")],
)
def test_what_would_lose_digits_or_is_another_kind_of_value_parks(old: str, new: str) -> None:
    before, after = (replace(SCHEMA, columns=(ID, replace(NOTE, target=target))) for target in (old, new))
    assert verdicts(list(compare_schemas(before, after))) == [RESHAPE]


def test_a_key_with_the_name_of_a_dropped_column_needs_another_table() -> None:
    before = [version(1, "id", "a", attnums=(1, 2)), version(2, "id", attnums=(1,))]
    assert name_taken_by_key([], before[0]) == []
    assert name_taken_by_key(before, version(3, "id", "b", attnums=(1, 3))) == []
    assert name_taken_by_key(before, version(3, "a", attnums=(1,))) != []
    assert name_taken_by_key(before, version(3, "id", "a", attnums=(1, 3))) == []


def test_the_name_of_a_dropped_column_is_carried_from_look_to_look_of_one_table() -> None:
    later = replace(PRINT, columns=(column(1, "id"),), dropped=((2, ""), (3, "")))
    first = later.carried(PRINT)
    assert first.dropped == ((2, ""), (3, "note"))
    assert later.carried(first).dropped == first.dropped
    assert later.carried(replace(PRINT, relation_oid=1)).dropped == later.dropped
    back = replace(first, columns=(column(1, "id"), column(4, "note")), last_attnum=4)
    assert "added again" in reasons(compare_fingerprints(first, back), NEEDS_BACKFILL)


def test_without_a_key_full_identity_is_another_target_and_others_are_not() -> None:
    keyless = replace(SCHEMA, key=())
    assert verdicts(list(compare_schemas(keyless, replace(keyless, identity="full")))) == [RESHAPE]
    assert verdicts(list(compare_schemas(keyless, replace(keyless, identity="nothing")))) == [FOLLOWED]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"relation_oid": 1}, "the table was dropped and created again"),
        ({"columns": (column(1, "id"),)}, 'column "note" was left out'),
        ({"columns": (column(1, "id"), column(3, "remark"))}, 'column "note" was renamed to "remark"'),
        (
            {"columns": (*PRINT.columns, column(4, "more", missing="{7}"))},
            'column "more" was added with a default, which older rows have too',
        ),
        (
            {"columns": (*PRINT.columns, column(4, "more", generated="s"))},
            'column "more" was added as a generated one, which older rows have too',
        ),
        (
            {"columns": (*PRINT.columns, column(2, "hidden"))},
            'column "hidden" was there before and is captured only now',
        ),
        (
            {"columns": (column(1, "id"), column(4, "note")), "dropped": ((3, ""),)},
            'column "note" was dropped and added again: older rows still have what the old one held',
        ),
        (
            {"relfilenode": 1, "columns": (column(1, "id"), column(3, "note", xmin=701))},
            'the table was rewritten and "note" altered',
        ),
        (
            {"relfilenode": 1, "columns": (*PRINT.columns, column(4, "more", xmin=701))},
            'the table was rewritten and "more" added',
        ),
        ({"membership": ()}, "the table was taken out of the publication"),
        ({"membership": ("table 20001",)}, "the table was taken out of the publication and added again"),
        ({"row_filter": "(id > 5)"}, "the publication's row filter changed"),
        ({"partitions": (PartitionPrint(9, 9, False),)}, "1 partition was attached with what it held"),
    ],
)
def test_what_the_stream_cannot_show_needs_a_backfill(change: dict[str, object], reason: str) -> None:
    differences = compare_fingerprints(PRINT, replace(PRINT, **change))  # type: ignore[arg-type]
    assert reasons(differences, NEEDS_BACKFILL) == reason
    assert PARK not in verdicts(list(differences))


@pytest.mark.parametrize(
    "change",
    [
        {"columns": (*PRINT.columns, column(4, "more"))},
        {"columns": (column(1, "id", not_null=True), column(3, "note", xmin=701))},
        {"relfilenode": 1},
        {"columns": (column(1, "id"),), "dropped": ((2, ""), (3, ""))},
        {"partitions": (PartitionPrint(9, 9, True),)},
        {"membership": ("schema 30000", "table 20000")},
        {"identity": "full"},
    ],
)
def test_what_leaves_older_rows_alone_is_followed(change: dict[str, object]) -> None:
    assert reasons(compare_fingerprints(PRINT, replace(PRINT, **change)), NEEDS_BACKFILL) == ""  # type: ignore[arg-type]


def test_the_rewrite_of_one_partition_and_its_removal_are_seen() -> None:
    old = replace(PRINT, partitions=(PartitionPrint(9, 9, False), PartitionPrint(10, 10, True)))
    rewritten = replace(
        old,
        partitions=(PartitionPrint(9, 9, False), PartitionPrint(10, 99, True)),
        columns=(column(1, "id", xmin=701), column(3, "note")),
    )
    assert reasons(compare_fingerprints(old, rewritten), NEEDS_BACKFILL) == 'the table was rewritten and "id" altered'
    removed = replace(old, partitions=(PartitionPrint(9, 9, False),))
    assert reasons(compare_fingerprints(old, removed), NEEDS_BACKFILL) == "1 partition was detached or dropped"


def test_all_leaves_with_new_toast_tables_were_not_truncated_alone() -> None:
    """By one transaction, as TRUNCATE of their root gives new storage: SET UNLOGGED and SET LOGGED were beside it."""
    old = replace(PRINT, partitions=tuple(PartitionPrint(n, n, True, xmin=700, toast=50 + n) for n in (9, 10)))
    truncated = replace(old, partitions=tuple(replace(one, relfilenode=99, xmin=701) for one in old.partitions))
    assert emptied_by(old, truncated) == 701
    assert reasons(compare_fingerprints(old, truncated), NEEDS_BACKFILL) == ""
    rewritten = replace(truncated, partitions=tuple(replace(one, toast=99) for one in truncated.partitions))
    assert emptied_by(old, rewritten) is None
    assert "as SET UNLOGGED and SET LOGGED give it" in reasons(compare_fingerprints(old, rewritten), NEEDS_BACKFILL)


def test_a_fingerprint_survives_json() -> None:
    full = replace(PRINT, partitions=(PartitionPrint(9, 9, False),), dropped=((2, "more"),), row_filter="(id > 5)")
    assert Fingerprint.from_json(full.to_json()) == full


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ({"relfilenode": 1, "columns": (*PRINT.columns, column(4, "more", xmin=701))}, (4,)),
        ({"columns": (*PRINT.columns, column(4, "more", missing="{7}"))}, (4,)),
        ({"columns": (*PRINT.columns, column(4, "more", generated="s"), column(5, "again", missing="{7}"))}, (4, 5)),
        ({"columns": (*PRINT.columns, column(2, "hidden"))}, (2,)),
        # Of a rewrite that altered an older column any value may be another one.
        (
            {"relfilenode": 1, "columns": (column(1, "id"), column(3, "note", xmin=701), column(4, "more", xmin=701))},
            (),
        ),
        ({"columns": (*PRINT.columns, column(2, "hidden")), "row_filter": "(id > 5)"}, ()),
        ({"columns": (*PRINT.columns, column(4, "more"))}, ()),
    ],
)
def test_which_columns_alone_may_differ(change: dict[str, object], columns: tuple[int, ...]) -> None:
    assert columns_of(compare_fingerprints(PRINT, replace(PRINT, **change))) == columns  # type: ignore[arg-type]


def version(number: int, *names: str, attnums: tuple[int, ...] = ()) -> TableSchema:
    columns = tuple(
        Column(name, "text", 25, -1, "string", attnum=attnum)
        for name, attnum in zip(names, attnums or (0,) * len(names), strict=True)
    )
    return replace(SCHEMA, version=number, key=(names[0],), columns=columns, published=attnums)
