"""Rows with keys of texts are found by pages as a dictionary of them finds them, whoever wrote the file, and how."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.target.delta import data_files
from tidemark.target.delta.compact_thrift import UnsupportedParquet
from tidemark.target.delta.data_files import DataFile
from tidemark.target.driver import target_rows, text_pages
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.driver.text_pages import TextFilter, pages_of_texts

NOTHING: Any = None
ROWS = 600

# As the driver, and the drain, write them.
OWN = {"compression": "zstd", "compression_level": 1, "use_dictionary": False, "version": "2.6"}


@dataclass(slots=True)
class RowsOfAFolder(TargetRows):
    """Current without a Delta table and its session."""

    def _open(self, file: DataFile) -> Any:
        return open(file.path, "rb")


def random_uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128)))


def alike(rng: random.Random) -> str:
    """All but four of the bytes are always the same."""
    return f"the same for all: {rng.randrange(10_000):04} and so is this"


def random_letters(rng: random.Random) -> str:
    """Of 16 bytes; some letters take two, three or four of them."""
    return rng.choice(["äöüßäöüß", "aäaaaaaaöaaaaa", "日本語日本a", "🌊🌊🌊🌊", 16 * "a", 15 * "a" + "b"])


KINDS: dict[str, Callable[[random.Random], str | None]] = {
    "uuid": random_uuid,
    "alike": alike,
    "letters": random_letters,
    "eight": lambda rng: f"{rng.randrange(10**8):08}",
    "short": lambda rng: f"{rng.randrange(1_000):03}",
    "number": lambda rng: str(rng.randrange(10**9)),
    "length": lambda rng: "x" * rng.randrange(40),
    "some": lambda rng: random_uuid(rng) if rng.random() < 0.997 else "",
    "nothing": lambda rng: random_uuid(rng) if rng.random() < 0.997 else None,
}


def random_form(rng: random.Random) -> dict[str, Any]:
    """Most are those of which pages are read."""
    form: dict[str, Any] = {
        "compression": rng.choice(["zstd", "zstd", "snappy", "none", "gzip", "lz4"]),
        "use_dictionary": rng.random() < 0.2,
        "data_page_version": rng.choice(["1.0", "1.0", "1.0", "2.0"]),
        "row_group_size": rng.choice([50, 250, ROWS]),
        "data_page_size": rng.choice([100, 3_000, 2**20]),
        "write_batch_size": rng.choice([7, 64]),
        "dictionary_pagesize_limit": rng.choice([1_000, 2**20]),
    }
    if not form["use_dictionary"] and rng.random() < 0.2:
        form["column_encoding"] = {"id": rng.choice(["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])}
    return form


def written(path: Path, rows: pa.Table, **form: Any) -> DataFile:
    pq.write_table(rows, path, **form)
    return DataFile(str(path), path.stat().st_size, rows.num_rows, {}, {}, 0, {}, None)


def target(files: Sequence[DataFile], key: Sequence[str] = ("id",)) -> TargetRows:
    return RowsOfAFolder(NOTHING, NOTHING, files, key, {"id": pa.string(), "n": pa.int64()}, 2**30, 100)


def changed(rng: random.Random, text: str) -> str:
    """With another letter at some place, of as many bytes where it was of one."""
    at = rng.randrange(len(text) or 1)
    return text[:at] + rng.choice("aäb") + text[at + 1 :]


@pytest.mark.parametrize("bits", [1, text_pages._MOST_BITS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_found_is_what_a_dictionary_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int, bits: int
) -> None:
    """Of two bits' hashes, half of all texts have one that is sought."""
    monkeypatch.setattr(text_pages, "_MOST_BITS", bits)
    rng = random.Random(f"{kind} {seed}")
    if seed % 2:
        monkeypatch.setattr(text_pages, "_READ_BYTES", 500)
        monkeypatch.setattr(text_pages, "_HEADER_BYTES", 200)
        monkeypatch.setattr(target_rows, "PIECE_BYTES", 1_000)
    masked: dict[str, set[int]] = {}
    monkeypatch.setattr(data_files, "masked_rows", lambda _s, _t, file: np.array(sorted(masked[file.path])))
    files, rows = [], dict[str, list[tuple[int, int]]]()
    for number in range(3):
        texts = [KINDS[kind](rng) for _ in range(ROWS)]
        field = pa.field("id", pa.string(), nullable=None in texts or rng.random() < 0.5)
        others = pa.array(rng.choices(range(5), k=ROWS), pa.int64())
        table = pa.table([pa.array(texts), others], schema=pa.schema([field, ("n", pa.int64())]))
        files.append(written(tmp_path / f"{number}.parquet", table, **random_form(rng)))
        masked[files[-1].path] = set(rng.sample(range(ROWS), 20))
        for at, text in enumerate(texts):
            if text is not None and at not in masked[files[-1].path]:
                rows.setdefault(text, []).append((number, at))
    for count in (1, 30, 300):
        there = [rng.choice([*rows]) for _ in range(count)]
        sought = list({*there, *(changed(rng, text) for text in there)})[:count]
        if rng.random() < 0.5:
            sought = [text for text in sought if len(text.encode()) == len(sought[0].encode())]
        column = pa.chunked_array([pa.array(["first", *sought])[1:], pa.array([], pa.string())])
        found = target(files).find([column])
        numbers = zip(found.files.tolist(), found.rows.tolist(), strict=True)
        expected = sorted((n, place) for n, text in enumerate(sought) for place in rows.get(text, []))
        assert sorted(zip(found.keys.tolist(), numbers, strict=True)) == expected


def test_a_key_of_several_columns_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "masked_rows", lambda *_: np.empty(0, np.int64))
    rng = random.Random(0)
    texts = [random_uuid(rng) for _ in range(50)]
    rows = pa.table({"id": [text for text in texts for _ in range(3)], "n": [0, 1, 2] * 50})
    file = written(tmp_path / "rows.parquet", rows, **OWN)
    found = target([file], ("id", "n")).find([pa.chunked_array([texts[:9]]), pa.chunked_array([[1, 7, 2] * 3])])
    assert sorted(zip(found.keys.tolist(), found.rows.tolist(), strict=True)) == [
        (key, 3 * key + n) for key, n in enumerate([1, 7, 2] * 3) if n != 7
    ]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("read_bytes", [text_pages._READ_BYTES, 700])
def test_pages_of_one_length_are_read_without_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, nullable: bool, read_bytes: int
) -> None:
    """Pages are smaller or larger than what is read at once."""
    monkeypatch.setattr(text_pages, "_READ_BYTES", read_bytes)
    monkeypatch.setattr(text_pages, "_HEADER_BYTES", 200)
    texts = [random_uuid(random.Random(n)) for n in range(ROWS)]
    rows = pa.table([pa.array(texts)], schema=pa.schema([pa.field("id", pa.string(), nullable)]))
    form = {**OWN, "compression": compression, "compression_level": None}
    written(tmp_path / "rows.parquet", rows, **form, write_batch_size=64, data_page_size=5_000, row_group_size=500)
    assert read(tmp_path / "rows.parquet", "id") == (texts, 2)


def read(path: Path, name: str) -> tuple[list[str], int]:
    """The texts, and of how many row groups."""
    with open(path, "rb") as source:
        parquet = pq.ParquetFile(source)
        groups = range(parquet.num_row_groups)
        pages = [page.copy() for group in groups for page in pages_of_texts(source, parquet, group, name)]
        assert len(pages) > len(groups)
        return [bytes(text).decode() for page in pages for text in page], len(groups)


def test_behind_the_last_page_of_one_length_arrow_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text stands in either part; each row is found once."""
    monkeypatch.setattr(data_files, "masked_rows", lambda *_: np.empty(0, np.int64))
    monkeypatch.setattr(target_rows, "PIECE_BYTES", 2_000)
    texts = [random_uuid(random.Random(n % 500)) for n in range(ROWS)]
    texts[400] = "another"
    form = {**OWN, "write_batch_size": 10, "data_page_size": 500}
    file = written(tmp_path / "rows.parquet", pa.table({"id": texts}), **form)
    read: list[int] = []
    with open(file.path, "rb") as source, pytest.raises(UnsupportedParquet):
        read.extend(len(page) for page in pages_of_texts(source, pq.ParquetFile(source), 0, "id"))
    assert 300 < sum(read) <= 400
    found = target([file]).find([pa.chunked_array([texts[:500][::7]])])
    expected = {row for row, text in enumerate(texts) if text in texts[:500][::7]}
    assert (sorted(found.rows.tolist()), len(found.rows)) == (sorted(expected), len(expected))


def test_texts_of_two_lengths_are_not_cut_at_the_middle_of_both(tmp_path: Path) -> None:
    """The number of bytes is that of two texts of eight. The first of these would be seven sevens, and the lower byte
    of the other's length."""
    file = written(tmp_path / "rows.parquet", pa.table({"id": ["7" * 7, "9" * 9]}), **OWN)
    assert not len(target([file]).find([pa.chunked_array([["7777777\t"]])]).rows)


def test_part_of_a_nested_column_is_no_key(tmp_path: Path) -> None:
    part = pa.field("b", pa.string(), nullable=False)
    shape = pa.schema([pa.field("a", pa.struct([part]), nullable=False)])
    pq.write_table(pa.table([[{"b": "12345678"}]], schema=shape), tmp_path / "rows.parquet", use_dictionary=False)
    with pytest.raises(UnsupportedParquet):
        read(tmp_path / "rows.parquet", "a.b")


def test_texts_that_begin_or_end_alike_are_told_apart_by_what_is_between() -> None:
    """So that few of the rows have to be compared."""
    rng = random.Random(0)
    texts = [alike(rng) for _ in range(20)]
    found = TextFilter.of(pa.chunked_array([texts]))
    assert found is not None
    others = text_pages.np.array([list(alike(rng).encode()) for _ in range(2_000)], "u1")
    assert len(found.candidates(others)) < 40
