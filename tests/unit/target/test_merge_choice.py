"""Which ways are open to a table's merge, fact by fact, and what is said against the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemark.target.merge_choice import (
    FEW,
    MANY,
    ChangeFacts,
    ChunkFacts,
    MergeChoice,
    MergeFacts,
    Settings,
    TableFacts,
    Way,
    against_folding_chunks,
    choose,
    is_small_for_spark,
    limits_of,
    reads_ahead,
)

TABLE = TableFacts(key="comparable", has_current=True)
CHANGES = ChangeFacts(rows=50, bytes=9_000, unsent=0, moved=0, truncates=0, in_shape=True, keys_in_shape=True)
CHUNKS = ChunkFacts(claims=2, sweeps=1)
FACTS = MergeFacts(TABLE, CHANGES, CHANGES, CHUNKS, CHUNKS)
NOT_FOLDED = "are more than the driver folds"


def changed(facts: MergeFacts, name: str, **values: Any) -> MergeFacts:
    return replace(facts, **{name: replace(getattr(facts, name), **values)})


def reasons(choice: MergeChoice) -> dict[tuple[str, str], str]:
    return {**choice.against}


def test_every_way_is_open_to_a_table_that_asks_for_nothing_special() -> None:
    choice = choose(FACTS)
    assert choice.ways == {
        "chunks": (Way.FILES, Way.PROOF, Way.SPARK),
        "changes": (Way.DRIVER, Way.SPARK),
        "verify": (Way.PROOF, Way.SPARK),
    }
    assert choice.against == {}


def test_a_merge_without_chunks_has_the_changes_alone() -> None:
    assert choose(MergeFacts(TABLE, CHANGES, CHANGES)).ways == {"changes": (Way.DRIVER, Way.SPARK)}


BY_THE_DRIVER = [("chunks", "files"), ("chunks", "proof"), ("changes", "driver"), ("verify", "proof")]
OF_TABLE: list[tuple[dict[str, Any], str, list[tuple[str, str]]]] = [
    ({"key": "none"}, "no key", BY_THE_DRIVER),
    ({"key": "floating"}, "compares otherwise", BY_THE_DRIVER),
    ({"has_current": False}, "no current", BY_THE_DRIVER),
    ({"writer_needed": True}, "only Spark writes", [("chunks", "files"), ("changes", "driver")]),
    ({"current_writer_needed": True}, "only Spark writes", [("chunks", "proof"), ("verify", "proof")]),
    ({"history_as_expected": False}, "other columns", [("chunks", "files")]),
    ({"current_as_expected": False}, "other columns", [("chunks", "files")]),
    ({"current_has_all_columns": False}, "lacks a column", [("chunks", "proof"), ("verify", "proof")]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "reason", "against"), OF_TABLE, ids=[str(values) for values, _, _ in OF_TABLE])
def test_a_fact_of_the_table_stands_against_these_ways(
    values: dict[str, Any], reason: str, against: list[tuple[str, str]]
) -> None:
    found = reasons(choose(changed(FACTS, "table", **values)))
    assert sorted(found) == sorted(against)
    assert all(reason in text for text in found.values())


@pytest.mark.parametrize(
    ("name", "values", "against"),
    [
        ("changes", {"rows": MANY.rows + 1}, [("changes", "driver")]),
        ("changes", {"bytes": MANY.staged_bytes + 1}, [("changes", "driver")]),
        ("changes", {"unsent": 15_000, "moved": 5_001}, [("changes", "driver")]),
        ("changes", {"unsent": 3, "moved": 2, "truncates": 1, "in_shape": False}, []),
        ("changes_read", {"truncates": 1}, [("chunks", "files"), ("chunks", "proof"), ("verify", "proof")]),
        ("changes_read", {"keys_in_shape": False}, [("chunks", "files"), ("chunks", "proof"), ("verify", "proof")]),
        ("chunks", {"repairs": True}, [("chunks", "files")]),
        ("chunks", {"in_shape": False}, [("chunks", "files"), ("chunks", "proof")]),
        ("chunks", {"claims": 0}, [("chunks", "files"), ("chunks", "proof")]),
        ("compared", {"in_shape": False}, [("verify", "proof")]),
        ("compared", {"keys_in_shape": False}, [("verify", "proof")]),
        ("settings", {"driver_rows": 0}, [("changes", "driver")]),
        ("settings", {"driver_rows": 49}, [("changes", "driver")]),
        ("settings", {"driver_rows": 50}, []),
        ("settings", {"adds_files": False}, [("chunks", "files")]),
        ("settings", {"proves": False}, [("chunks", "proof"), ("verify", "proof")]),
        ("settings", {"folds_chunks": False}, []),
    ],
)
def test_a_fact_of_changes_chunks_or_settings_stands_against_these_ways(
    name: str, values: dict[str, Any], against: list[tuple[str, str]]
) -> None:
    assert sorted(reasons(choose(changed(FACTS, name, **values)))) == sorted(against)


@pytest.mark.parametrize(
    ("values", "setting", "limits"),
    [
        ({}, None, FEW),
        ({"rows": FEW.rows + 1}, None, MANY),
        ({"bytes": FEW.staged_bytes + 1}, None, MANY),
        ({"rows": MANY.rows}, None, MANY),
        ({"rows": MANY.rows + 1}, None, None),
        ({"rows": 30_000}, 30_000, FEW),
        ({"rows": 30_001}, 30_000, None),
        ({"rows": 0}, 0, None),
    ],
)
def test_the_drivers_limits_follow_from_size_and_setting(
    values: dict[str, Any], setting: int | None, limits: object
) -> None:
    assert limits_of(replace(CHANGES, **values), Settings(setting)) is limits


@pytest.mark.parametrize(
    ("touched", "values", "reason"),
    [
        (20_000, {}, None),
        (200_001, {}, "were changed meanwhile"),
        (1, {"unsent": 1}, "lacks a value"),
        (1, {"moved": 1}, "moves a key"),
        (1, {"in_shape": False}, "another shape"),
        (1, {"bytes": MANY.staged_bytes + 1}, NOT_FOLDED),
    ],
)
def test_rows_of_chunks_are_folded_under_whole_changes(
    touched: int, values: dict[str, Any], reason: str | None
) -> None:
    against = against_folding_chunks(changed(FACTS, "changes_read", **values), touched)
    assert against is None if reason is None else against is not None and reason in against


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, False),
        ({"rows": 100_000}, True),
        ({"rows": 100_000, "in_shape": False}, False),
        ({"rows": 100_000, "unsent": 300}, True),
        ({"rows": 5_000_000}, False),
    ],
)
def test_many_changes_in_the_tables_shape_are_read_ahead(facts: dict[str, Any], expected: bool) -> None:
    plain = MergeFacts(TABLE, CHANGES, CHANGES)
    assert reads_ahead(changed(plain, "changes", **facts)) is expected
    assert not reads_ahead(changed(FACTS, "changes", **facts)), "beside chunks"


def test_spark_compiles_its_plans_for_many_rows_or_a_large_table() -> None:
    assert is_small_for_spark(20_000, 2**20)
    assert not is_small_for_spark(20_001, 2**20)
    assert not is_small_for_spark(1, 2**30)
    assert not is_small_for_spark(1, None), "nobody knows how large it is"
