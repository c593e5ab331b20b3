"""Footers and pages of Parquet files with bytes flipped, cut, lengthened and nested, by seed: refused by name, or read.

A file that is read all the same is recognised by its checksum. So here no other exception may come, no endless work,
and no more memory than the file's own size allows."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.thorough import seeds_of_damage
from tests.unit.pgoutput.test_damaged_streams import damage
from tests.unit.target.test_parquet_footer import WRITERS, facts, table, written
from tidemark.target.delta import parquet_footer
from tidemark.target.delta.compact_thrift import ThriftReader, UnsupportedParquet
from tidemark.target.driver.text_pages import pages_of_texts

DAMAGES = 20
MOST_BYTES = 64 * 2**20
FILES = [written(table(0, 50), 2, **options) for options in WRITERS]


def with_damaged_footer(random_: random.Random) -> bytes:
    file = random_.choice(FILES)
    (length,) = struct.unpack("<I", file[-8:-4])
    pieces = [file[-8 - length : -8]]
    damage(random_, pieces)
    footer = b"".join(pieces)
    return file[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def rewritten(content: bytes) -> bytes:
    """What a first load makes of a file's footer."""
    footer = parquet_footer.read_footer(io.BytesIO(content), len(content))
    if sum(footer.rows) != 50:
        raise UnsupportedParquet  # the plan says how many rows there are, and is asked first
    return parquet_footer.joined([(footer, parquet_footer.constants(footer.rows, facts(1)))], frozenset({"_text"}))


def outcome(content: bytes) -> str:
    tracemalloc.start()
    try:
        rewritten(content)
    except UnsupportedParquet:
        return "refused"
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < MOST_BYTES
    return "read"


@pytest.mark.parametrize("seed", seeds_of_damage(0, below=400))
def test_a_damaged_footer_is_refused_by_name_or_read(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(DAMAGES):
        outcome(with_damaged_footer(random_))


def test_the_damage_of_a_footer_is_of_both_kinds() -> None:
    """Refused always, or never, would prove little."""
    random_ = random.Random(1)
    found = Counter(outcome(with_damaged_footer(random_)) for _ in range(40))
    assert min(found["refused"], found["read"]) > 2, found


@pytest.mark.parametrize("content", [b"\x1c" * 100_000, b"\x15" + b"\xff" * 2_000_000, b"\x19\xfc\xff\xff\xff\xff\x0f"])
def test_deep_and_long_structs_are_refused(content: bytes) -> None:
    with pytest.raises(UnsupportedParquet):
        ThriftReader(content).struct()


def with_damaged_pages(random_: random.Random) -> bytes:
    sink = io.BytesIO()
    texts = pa.table({"key": [f"{random_.randrange(10**12):012}" for _ in range(60)]})
    codec = random_.choice(["zstd", "snappy", "none"])
    pq.write_table(texts, sink, compression=codec, use_dictionary=False, data_page_size=200, write_batch_size=10)
    content = sink.getvalue()
    (length,) = struct.unpack("<I", content[-8:-4])
    body = bytearray(content[4 : -8 - length])
    for _ in range(random_.choice((1, 1, 2, 8))):
        body[random_.randrange(len(body))] ^= 1 << random_.randrange(8)
    return b"PAR1" + bytes(body) + content[-8 - length :]


@pytest.mark.parametrize("seed", seeds_of_damage(0, below=400))
def test_damaged_pages_are_refused_by_name_or_read(seed: int) -> None:
    random_ = random.Random(seed)
    refused = 0
    for _ in range(DAMAGES):
        content = with_damaged_pages(random_)
        source = io.BytesIO(content)
        try:
            assert sum(len(texts) for texts in pages_of_texts(source, pq.ParquetFile(source), 0, "key")) == 60  # type: ignore[arg-type]
        except UnsupportedParquet:
            refused += 1
    assert refused
