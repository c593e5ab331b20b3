"""Which tables get no more changes, by the relations that the ledger has of their source."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.capture import table_ids
from tidemark.capture.table_ids import TableIds
from tidemark.ledger.captured.relation_ids import RelationRecord
from tidemark.lsn import Lsn
from tidemark.names import TableName

# OID, the id of the relation, its present or last name, and whether it exists.
Relation = tuple[int, str, str, bool]

CASES: dict[str, tuple[list[Relation], dict[str, str], list[str]]] = {
    "exists": ([(1, "public.item", "public.item", True)], {}, []),
    "dropped": ([(1, "public.item", "public.item", False)], {}, []),
    "dropped, and created again": (
        [(1, "public.item", "public.item", False), (2, "public.item~2", "public.item", True)],
        {},
        ["public.item"],
    ),
    "dropped twice, and created again": (
        [
            (1, "public.item", "public.item", False),
            (2, "public.item~2", "public.item", False),
            (3, "public.item~3", "public.item", True),
        ],
        {},
        ["public.item", "public.item~2"],
    ),
    "dropped twice": (
        [(1, "public.item", "public.item", False), (2, "public.item~2", "public.item", False)],
        {},
        [],
    ),
    "renamed": ([(1, "public.item", "public.old_item", True)], {}, []),
    "renamed, and another created": (
        [(1, "public.item", "public.old_item", True), (2, "public.item~2", "public.item", True)],
        {},
        ["public.item"],
    ),
    "two that swapped their names": (
        [(1, "public.item", "public.price", True), (2, "public.price", "public.item", True)],
        {},
        ["public.item", "public.price"],
    ),
    "dropped under another name, which another relation has": (
        [(1, "public.item", "public.old_item", False), (2, "public.old_item", "public.old_item", True)],
        {},
        ["public.item"],
    ),
    "dropped under another name, and its first name given again": (
        [(1, "public.item", "public.old_item", False), (2, "public.item~2", "public.item", True)],
        {},
        ["public.item"],
    ),
    "dropped under another name": ([(1, "public.item", "public.old_item", False)], {}, []),
    "of another server, and of this one": (
        [(1, "public.item", "public.item", False), (9, "public.item", "public.item", True)],
        {},
        [],
    ),
    "continues as another table": (
        [(1, "public.item~2", "public.item", True)],
        {"public.item": "public.item~2"},
        ["public.item"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_which_tables_get_no_more_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    relations, continued, expected = CASES[name]
    records = {
        oid: RelationRecord(oid, TableName.parse(table), TableName.parse(called), None, None if exists else Lsn(100))
        for oid, table, called, exists in relations
    }
    shapes = {after: SimpleNamespace(before=before, table=after) for before, after in continued.items()}
    monkeypatch.setattr(table_ids.relation_ids, "all_of", lambda *_: records)
    monkeypatch.setattr(table_ids.successors, "all_of", lambda _: shapes)
    unused: Any = None
    tables = [*dict.fromkeys([*continued, *(table for _, table, _, _ in relations), "public.unknown"])]
    assert TableIds(unused, unused, "7000000000000000000").superseded(tables) == expected
