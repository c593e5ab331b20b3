"""Parquet files become one, page by page, with columns of one value beside their own."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.target.delta import parquet_footer
from tidemark.target.delta.compact_thrift import UnsupportedParquet

WRITERS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "use_dictionary": False, "version": "2.6", "write_statistics": ["id"]},
    {"write_page_index": True, "data_page_version": "2.0"},
]


def table(first: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "name": pa.array([f"name {n}" if n % 3 else None for n in range(rows)], pa.string()),
            "price": pa.array([None] * rows, pa.decimal128(10, 2)),
            "list": [[n, None] for n in range(rows)],
            "_text": pa.array(
                [[("a", "b")] if n % 2 else None for n in range(rows)], pa.map_(pa.string(), pa.string())
            ),
        }
    )


def written(rows: pa.Table, groups: int, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=max(1, rows.num_rows // groups), **options)
    return sink.getvalue()


def facts(number: int) -> dict[str, pa.Scalar]:
    return {"_lsn": pa.scalar(number, pa.int64()), "_op": pa.scalar("read")}


@pytest.mark.parametrize("options", WRITERS)
def test_rows_come_out_in_their_order_with_the_constants_of_their_file(options: dict[str, Any]) -> None:
    tables = [table(0, 1000), table(5000, 7), table(6000, 1)]
    files = [written(rows, groups, **options) for rows, groups in zip(tables, (3, 1, 1), strict=True)]
    numbers = [77, 2**60, -1]
    for excluded in (frozenset[str](), frozenset({"_text", "list"})):
        content, parts = b"", []
        for file, number in zip(files, numbers, strict=True):
            footer = parquet_footer.read_footer(io.BytesIO(file), len(file))
            constants = parquet_footer.constants(footer.rows, facts(number))
            parts.append((footer, constants))
            content += file[: footer.body] + constants.body
        content += parquet_footer.joined(parts, excluded)
        read = pq.ParquetFile(io.BytesIO(content))
        assert read.metadata.num_rows == 1008
        assert [read.metadata.row_group(n).num_rows for n in range(read.num_row_groups)][-2:] == [7, 1]
        expected = pa.concat_tables(tables).drop_columns(list(excluded))
        assert read.read(columns=expected.column_names).equals(expected)
        added = read.read(columns=["_lsn", "_op"])
        assert added["_lsn"].to_pylist() == [77] * 1000 + [2**60] * 7 + [-1]
        assert set(added["_op"].to_pylist()) == {"read"}


def test_what_a_reader_of_a_part_of_the_file_goes_by_is_where_the_first_column_begins() -> None:
    file = written(table(0, 1000), 4)
    footer = parquet_footer.read_footer(io.BytesIO(file), len(file))
    constants = parquet_footer.constants(footer.rows, facts(1))
    content = file[: footer.body] + constants.body + parquet_footer.joined([(footer, constants)], frozenset())
    before, after = pq.ParquetFile(io.BytesIO(file)).metadata, pq.ParquetFile(io.BytesIO(content)).metadata
    for number in range(4):
        own, now = before.row_group(number).column(0), after.row_group(number).column(0)
        assert (now.path_in_schema, now.dictionary_page_offset) == ("id", own.dictionary_page_offset)
        middle = now.dictionary_page_offset + after.row_group(number).total_byte_size // 2
        assert middle < len(content)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1\x00\x00\x00\x00PAR1", b"PAR1" + b"\xff" * 40 + b"\x28\x00\x00\x00PAR1"]
)
def test_what_is_no_footer_is_refused(content: bytes) -> None:
    with pytest.raises(UnsupportedParquet):
        parquet_footer.read_footer(io.BytesIO(content), len(content))


def test_a_column_that_is_there_already_is_not_added() -> None:
    file = written(table(0, 3), 1)
    footer = parquet_footer.read_footer(io.BytesIO(file), len(file))
    with pytest.raises(UnsupportedParquet):
        parquet_footer.joined([(footer, parquet_footer.constants(footer.rows, {"id": pa.scalar(1)}))], frozenset())
