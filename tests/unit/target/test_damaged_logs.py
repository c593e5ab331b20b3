"""Logs of Delta tables with bytes and values changed, by seed: refused by name, or read.

Whoever can write into a table's folder can write a log that reads well. So here only no other exception may come, no
endless work, and no more memory than the files' own size allows."""

from __future__ import annotations

import copy
import io
import json
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.thorough import seeds_of_damage
from tests.unit.formats.test_damaged_ledger_rows import HOSTILE
from tests.unit.formats.test_hostile_files import SECRET, places
from tests.unit.pgoutput.test_damaged_streams import damage
from tidemark.errors import LakeFailed, MergeFailed
from tidemark.target.delta import hadoop_files, log_files
from tidemark.target.delta.checkpoints import Action, reconciled
from tidemark.target.merge_failures import LogUnreadable, as_error

DAMAGES = 60
MOST_BYTES = 64 * 2**20
Log = dict[str, bytes]

METADATA = {
    "id": "a",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": [{"name": SECRET, "type": "long"}]}),
    "partitionColumns": [],
    "configuration": {"delta.columnMapping.mode": "name"},
}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}
COMMITS: list[list[Action]] = [
    [("commitInfo", {"operation": "CREATE"}), ("protocol", PROTOCOL), ("metaData", METADATA)],
    *[[("txn", {"appId": f"app-{n % 2}", "version": 100 * n}), ("add", {"path": SECRET, "size": n})] for n in (1, 2)],
    [("metaData", {**METADATA, "name": "renamed"}), ("txn", {"appId": "app-0", "version": 300})],
]


def _log(checkpoint_at: int | None) -> Log:
    files = {
        f"{n:020}.json": b"".join(
            json.dumps({kind: fields}, separators=(",", ":")).encode() + b"\n" for kind, fields in c
        )
        for n, c in enumerate(COMMITS)
    }
    if checkpoint_at is not None:
        content = io.BytesIO()
        pq.write_table(reconciled(None, COMMITS[: checkpoint_at + 1], 0), content)
        files[f"{checkpoint_at:020}.checkpoint.parquet"] = content.getvalue()
    return files


LOGS = [_log(None), _log(1)]


def damaged(random_: random.Random) -> Log:
    log = dict(random_.choice(LOGS))
    name = random_.choice([*log])
    if name.endswith(".json") and random_.random() < 0.5:
        log[name] = _with_another_value(random_, log[name])
    else:
        pieces = log[name].split(b"\n") if name.endswith(".json") else [log[name]]
        damage(random_, pieces)
        log[name] = b"\n".join(pieces)
    if random_.random() < 0.1:
        del log[random_.choice([*log])]
    return log


def _with_another_value(random_: random.Random, commit: bytes) -> bytes:
    actions = [json.loads(line) for line in commit.splitlines()]
    holder, key = random_.choice([*places(random_.choice(actions))])
    holder[key] = copy.deepcopy(random_.choice(HOSTILE))
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)


def outcome(log: Log, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(log_files, "_log_names", lambda *_: list(log))
    monkeypatch.setattr(hadoop_files, "read_whole", lambda _, uri: log[uri.rpartition("/")[2]])
    monkeypatch.setattr(hadoop_files, "open_to_read", lambda _, uri: io.BytesIO(log[uri.rpartition("/")[2]]))
    spark: Any = SimpleNamespace()
    error: Exception | None = None
    try:
        read = log_files.newest(spark, "t")
    except (LogUnreadable, OSError) as refused:  # pyarrow raises an OSError for some files
        error = refused
    if error is not None:
        assert SECRET not in str(error)
        assert isinstance(as_error(error, "public.t", "/lake"), MergeFailed | LakeFailed)
        return "refused"
    assert read.version in (-1, *range(len(COMMITS)))
    assert all(type(app) is str and type(version) is int for app, version in read.positions.items())
    assert type(read.is_mapped) is bool
    assert read.version < 0 or type(read.metadata["schemaString"]) is str
    return "read"


def test_a_sound_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [outcome(log, monkeypatch) for log in LOGS] == ["read", "read"]


@pytest.mark.parametrize("seed", seeds_of_damage(0, below=200))
def test_a_damaged_log_is_refused_by_name_or_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    before = pa.default_memory_pool().max_memory() or 0
    outcomes = Counter(outcome(damaged(random_), monkeypatch) for _ in range(DAMAGES))
    assert (pa.default_memory_pool().max_memory() or 0) - before < MOST_BYTES
    assert min(outcomes["refused"], outcomes["read"]) > 2, outcomes
