"""What the footers of staged files are asked for, and what becomes of one that cannot be read. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.staging.batch_writer import BatchWriter
from tidemark.storage.store import Store
from tidemark.target.driver import history_files

SCHEMA = TableSchema(TableName("public", "t"), 1, 16384, "default", ("id",), (Column("id", "int", 23, -1, "int"),))
SESSION: Any = None

Damage = Callable[[bytes], bytes]


def change(number: int, *, unsent: bool = False) -> pa.RecordBatch:
    row = dict.fromkeys(staged_schema(SCHEMA).names) | {"_commit_lsn": 7, "_ordinal": number, "id": number}
    return pa.RecordBatch.from_pylist([row | {"_unchanged": ["id"] if unsent else None}], staged_schema(SCHEMA))


def staged(lake: Path, changes: int) -> PlannedBatch:
    """A file for each change; of every third one a value was not sent."""
    writer = BatchWriter(Store(str(lake)), "batch", row_group_bytes=1, file_bytes=1)
    for number in range(changes):
        writer.write(SCHEMA, change(number, unsent=number % 3 == 1))
    written = writer.finish()[SCHEMA.table]
    files = tuple(StagedFile(f.path, f.rows, f.bytes, f.sha256, f.schema_version) for f in written)
    return PlannedBatch(Lsn(5), Lsn(9), files, 1, 0, 0)


@pytest.fixture
def batch(tmp_path: Path) -> PlannedBatch:
    return staged(tmp_path, 3)


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked for its footer."""
    uris: list[str] = []

    def open_here(session: object, uri: str, size: int) -> BinaryIO:
        uris.append(uri)
        return Path(uri).open("rb")

    monkeypatch.setattr(history_files, "open_to_read", open_here)
    return uris


def kept(lake: Path, batch: PlannedBatch) -> list[int]:
    """Which of the batch's files, by their places."""
    found = history_files.as_staged(SESSION, str(lake), [batch], {1}, lambda *_: None)
    return [batch.files.index(file) for _, file in found.files]


def test_the_file_of_a_change_that_is_not_self_contained_is_left(tmp_path: Path, batch: PlannedBatch) -> None:
    assert kept(tmp_path, batch) == [0, 2]


def _other_thrift(content: bytes) -> bytes:
    begins = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:begins] + b"\xff" * 20 + content[begins + 20 :]


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda _: b"no parquet" * 99, _other_thrift])
def test_a_file_whose_footer_cannot_be_read_is_left_to_spark(
    tmp_path: Path, batch: PlannedBatch, damage: Damage
) -> None:
    """Which says what is wrong with it. Arrow has several kinds of error for that."""
    damaged = tmp_path / batch.files[2].path
    damaged.write_bytes(damage(damaged.read_bytes()))
    assert kept(tmp_path, batch) == [0]


def test_a_lake_that_does_not_answer_is_left_to_spark(
    tmp_path: Path, batch: PlannedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is mounted has an error of the machine's own for it."""

    def refused(session: object, uri: str, size: int) -> BinaryIO:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(history_files, "open_to_read", refused)
    assert kept(tmp_path, batch) == []


def test_of_many_small_files_few_are_asked(tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage a plan has hundreds of them, and in an object store each is a request of its own."""
    monkeypatch.setattr(history_files, "MAX_SMALL_FOOTERS", 4)
    batch = staged(tmp_path, 12)
    large = replace(batch.files[11], bytes=history_files.LEAST_BYTES)
    assert kept(tmp_path, replace(batch, files=(*batch.files[:11], large))) == [0, 2, 3, 11]
    assert [uri.removeprefix(f"{tmp_path}/") for uri in opened] == [batch.files[at].path for at in (0, 1, 2, 3, 11)]
