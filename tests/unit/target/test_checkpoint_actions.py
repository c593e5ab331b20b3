"""The actions of a checkpoint are those that still hold, in whatever pieces the log is read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidemark.target.delta.checkpoints import SCHEMA, Action, LeftToDelta, reconciled

PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": []}
METADATA = {"id": "a", "format": {"provider": "parquet"}, "schemaString": "{}", "partitionColumns": []}
EXPIRED_MS = 500


def file(rng: random.Random) -> dict[str, Any]:
    """Of few files, each without a deletion vector or with one of some, with an offset or without."""
    fields: dict[str, Any] = {"path": f"{rng.randrange(6)}.parquet", "size": rng.randrange(100)}
    if rng.random() < 0.6:
        offset = rng.choice([{}, {"offset": 1}, {"offset": 5}])
        vector = {"storageType": rng.choice("ui"), "pathOrInlineDv": f"v{rng.randrange(3)}", **offset}
        fields["deletionVector"] = {**vector, "sizeInBytes": 4, "cardinality": 1}
    return fields


def commit(rng: random.Random) -> list[Action]:
    actions: list[Action] = [("commitInfo", {"operation": "WRITE"})]
    for _ in range(rng.randrange(5)):
        kind = rng.choice(["add", "remove", "txn"])
        if kind == "txn":
            actions.append((kind, {"appId": f"app-{rng.randrange(3)}", "version": rng.randrange(1000)}))
        elif kind == "add":
            tags = rng.choice([None, {"a": "1"}])
            actions.append(
                (kind, {**file(rng), "partitionValues": {}, "dataChange": True, "stats": "{}", "tags": tags})
            )
        else:
            actions.append((kind, {**file(rng), "deletionTimestamp": rng.randrange(1000), "dataChange": True}))
    if rng.random() < 0.2:
        actions.append(("metaData", {**METADATA, "configuration": {"n": str(rng.randrange(9))}}))
    return actions


def replayed(commits: Sequence[Sequence[Action]]) -> list[str]:
    """The same by the protocol's own words: one action after another."""
    holds: dict[Any, Action] = {}
    for kind, fields in (action for actions in commits for action in actions):
        if kind == "commitInfo":
            continue
        name: Any = fields.get("appId") if kind == "txn" else None
        if kind in ("add", "remove"):
            vector = fields.get("deletionVector") or {}
            name = (fields["path"], *(vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset")))
        holds["file" if kind in ("add", "remove") else kind, name] = (kind, fields)
    kept = [(k, f) for k, f in holds.values() if k != "remove" or f["deletionTimestamp"] > EXPIRED_MS]
    return texts(
        [{kind: {**fields, "dataChange": False} if "dataChange" in fields else fields} for kind, fields in kept]
    )


def texts(rows: Sequence[dict[str, Any]]) -> list[str]:
    def without_nothing(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_nothing(inner) for name, inner in value.items() if inner not in (None, {}, [])}
        return value

    return sorted(json.dumps(without_nothing(row), sort_keys=True) for row in rows)


def as_texts(table: pa.Table) -> list[str]:
    rows = table.to_pylist(maps_as_pydicts="strict")
    return texts([{kind: fields for kind, fields in row.items() if fields is not None} for row in rows])


@pytest.mark.parametrize("seed", range(40))
def test_what_holds_is_what_a_replay_of_all_commits_leaves(seed: int) -> None:
    """However many checkpoints lie in between."""
    rng = random.Random(seed)
    commits = [[("protocol", PROTOCOL), ("metaData", METADATA)], *(commit(rng) for _ in range(30))]
    table, since = None, list[Sequence[Action]]()
    for actions in commits:
        since.append(actions)
        if rng.random() < 0.3:
            table, since = reconciled(table, since, EXPIRED_MS), []
    table = reconciled(table, since, EXPIRED_MS)
    assert table.schema == SCHEMA
    assert as_texts(table) == replayed(commits)


def test_columns_that_delta_derives_are_left_out_and_others_are_not_lost() -> None:
    commits: list[list[Action]] = [[("add", {"path": "a", "size": 1, "stats": "{}"})]]
    table = reconciled(None, commits, EXPIRED_MS)
    added = table["add"].combine_chunks()
    derived = pa.StructArray.from_arrays(
        [*added.flatten(), added.field("size"), pa.nulls(1, pa.int64())],
        [*(f.name for f in added.type), "stats_parsed", "baseRowId"],
    )
    written_by_delta = pa.table({"add": derived, "sidecar": pa.nulls(1, pa.struct({"path": pa.string()}))})
    assert as_texts(reconciled(written_by_delta, [], EXPIRED_MS)) == as_texts(table)
    alone = written_by_delta["add"].combine_chunks()
    without = [pa.nulls(1, f.type) if f.name == "stats" else alone.field(f.name) for f in alone.type]
    with pytest.raises(LeftToDelta):  # the statistics are in what Delta derives, and nowhere else
        reconciled(pa.table({"add": pa.StructArray.from_arrays(without, fields=list(alone.type))}), [], EXPIRED_MS)
    unknown = pa.StructArray.from_arrays(
        [*added.flatten(), added.field("size")], [*(f.name for f in added.type), "rowsOfMars"]
    )
    with pytest.raises(LeftToDelta):
        reconciled(pa.table({"add": unknown}), [], EXPIRED_MS)
    with pytest.raises(LeftToDelta):
        reconciled(pa.table({"add": added, "sidecar": pa.array([{"path": "b"}])}), [], EXPIRED_MS)


@pytest.mark.parametrize(
    "action",
    [
        ("domainMetadata", {"domain": "delta.clustering", "configuration": "{}", "removed": False}),
        ("cdc", {"path": "a", "size": 1}),
        ("add", {"path": "a", "size": 1, "baseRowId": 7}),
        ("protocol", {**PROTOCOL, "writerFeatures": ["rowTracking"]}),
    ],
)
def test_an_action_that_is_not_known_is_left_to_delta(action: Action) -> None:
    with pytest.raises(LeftToDelta):
        reconciled(None, [[action]], EXPIRED_MS)
