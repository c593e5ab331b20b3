"""Which chunks the driver may read by the table's own names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tidemark.formats.manifest import Claim, StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.target.merge_facts import chunks_in_shape, keys_in_shape


def schema(version: int, *names: str, key: Sequence[str] = ("id",), **columns: str) -> TableSchema:
    """Columns of these names and numbers; of `columns` the types that are not int."""
    listed = tuple(Column(n, "int", 23, -1, columns.get(n, "int"), attnum=at) for at, n in enumerate(names, 1))
    published = tuple(range(1, len(names) + 1))
    return TableSchema(TableName("s", "t"), version, 16384, "default", tuple(key), listed, published=published)


PLAIN = schema(1, "id", "a", "b")
EXCHANGED = schema(2, "id", "b", "a")
ADDED = schema(2, "id", "a", "b", "c")
WIDER = schema(2, "id", "a", "b", b="bigint")
DROPPED = replace(schema(2, "id", "a"), published=(1, 2)).with_dropped([Column("b", "int", 23, -1, "int", attnum=3)])


def chunk(version: int, columns: tuple[int, ...] | None = None) -> Claim:
    file = StagedFile("chunk", 1, 1, "", version)
    return Claim("b", "1-1", "x", Lsn(9), "", Lsn(1), "9:9:", None, 1, (file,), columns=columns)


@pytest.mark.parametrize(
    ("schemas", "claims", "expected"),
    [
        ([PLAIN], [chunk(1)], True),
        ([PLAIN], [chunk(1), chunk(1, (2,))], False),
        ([PLAIN], [chunk(1, (2, 3))], False),
        ([PLAIN, EXCHANGED], [chunk(2)], True),
        ([PLAIN, EXCHANGED], [chunk(1)], False),
        ([PLAIN, EXCHANGED], [chunk(2), chunk(1)], False),
        ([PLAIN, ADDED], [chunk(1)], False),
        ([PLAIN, WIDER], [chunk(1)], False),
        ([schema(2, "id", "a"), DROPPED], [chunk(2)], True),
        ([PLAIN, DROPPED], [chunk(1)], False),
        ([PLAIN], [chunk(1), chunk(3)], False),
        ([PLAIN], [], True),
    ],
    ids=[
        *("as it is", "some columns", "all columns but the key", "after an exchange", "before it", "on both sides"),
        *("a column more since", "wider since", "one dropped before", "one dropped since", "a shape nobody knows"),
        "none",
    ],
)
def test_only_files_of_the_tables_own_columns_chunks_in_shape(
    schemas: list[TableSchema], claims: list[Claim], expected: bool
) -> None:
    assert chunks_in_shape(schemas, claims) is expected


def changes(version: int) -> PlannedBatch:
    return PlannedBatch(Lsn(1), Lsn(2), (StagedFile("changes", 1, 1, "", version),), 0, 0, 0)


def chunks(version: int) -> PlannedBatch:
    return replace(changes(version), files=(), claims=(chunk(version),))


RENAMED = schema(2, "number", "a", "b", key=("number",))
KEY_EXCHANGED = schema(2, "a", "id", "b", key=("a",))
TWO = schema(1, "a", "b", "c", key=("a", "b"))
TWO_EXCHANGED = schema(2, "b", "a", "c", key=("b", "a"))


@pytest.mark.parametrize(
    ("schemas", "batches", "expected"),
    [
        ([PLAIN, ADDED], [changes(1), changes(2)], True),
        ([PLAIN, EXCHANGED], [changes(1), chunks(1)], True),
        ([PLAIN, RENAMED], [changes(1)], False),
        ([PLAIN, RENAMED], [changes(2)], True),
        ([PLAIN, KEY_EXCHANGED], [changes(2), changes(1)], False),
        ([PLAIN, KEY_EXCHANGED], [changes(2), chunks(1)], False),
        ([TWO, TWO_EXCHANGED], [chunks(1), changes(2)], False),
        ([TWO, TWO_EXCHANGED], [chunks(2), changes(2)], True),
        ([replace(PLAIN, published=()), ADDED], [changes(1)], True),
    ],
    ids=[
        *("the key is as it was", "others were exchanged", "it was renamed", "and nothing is from before"),
        *("its name is another's", "that of a chunk", "two of it were exchanged", "before", "numbers are not known"),
    ],
)
def test_a_key_is_looked_for_under_the_names_that_it_has_in_every_file(
    schemas: list[TableSchema], batches: list[PlannedBatch], expected: bool
) -> None:
    assert keys_in_shape(schemas, batches) is expected
