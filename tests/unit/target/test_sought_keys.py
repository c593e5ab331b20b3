"""Row groups that cannot have one of the keys are told by their bounds, of whole numbers and of texts."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.target.driver import target_rows
from tidemark.target.driver.target_rows import SoughtKeys, TargetRows, group_bounds
from tidemark.target.merge_choice import Declined

# Of UTF-16 the first is above the second: its order is not that of UTF-8's bytes, nor Parquet's.
LETTERS = "\uffee\U0001f30aäza~A "


def text(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 3)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most_sorted", [target_rows.MAX_SORTED, 0])
def test_a_row_group_is_passed_over_if_no_key_is_between_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most_sorted: int
) -> None:
    """Many texts are not sorted; then only all of them together are above or below."""
    monkeypatch.setattr(target_rows, "MAX_SORTED", most_sorted)
    rng = random.Random(seed)
    rows = sorted({(text(rng), rng.randint(-9, 9)) for _ in range(40)}, key=lambda row: row[0].encode())
    written = pa.table({"t": [t for t, _ in rows], "n": [n for _, n in rows]})
    pq.write_table(written, tmp_path / "rows.parquet", row_group_size=4)
    footer = pq.read_metadata(tmp_path / "rows.parquet")
    passed = 0
    for _ in range(20):
        keys = [rng.choice(rows) if rng.random() < 0.3 else (text(rng), rng.randint(-20, 20)) for _ in range(2)]
        columns = [pa.chunked_array([pa.array([key[n] for key in keys])]) for n in range(2)]
        sought = SoughtKeys([pa.string(), pa.int64()], columns)
        for group in range(footer.num_row_groups):
            low, high = group_bounds(footer, group, ["t", "n"])
            may_be_in = sought.may_be_in(low.get, high.get, ["t", "n"])
            there = rows[4 * group : 4 * group + 4]
            assert may_be_in or not set(keys) & set(there)
            if not may_be_in:
                passed += 1
            elif most_sorted:
                assert all(any(_between(low[c], key[n], high[c]) for key in keys) for n, c in enumerate("tn"))
    assert passed > 10


def _between(low: Any, value: Any, high: Any) -> bool:
    return bool(low <= value <= high)


def test_bounds_of_another_type_say_nothing() -> None:
    """A key's column may have been of another type when a file was written."""
    sought = SoughtKeys([pa.string()], [pa.chunked_array([["5"]])])
    assert sought.may_be_in({"k": 7}.get, {"k": 9}.get, ["k"])
    assert not sought.may_be_in({"k": "7"}.get, {"k": "9"}.get, ["k"])
    assert not SoughtKeys([pa.string()], [pa.chunked_array([[]], pa.string())]).may_be_in({}.get, {}.get, ["k"])


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_found_in_rows_that_rise(seed: int) -> None:
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(-50, 50), rng.randint(1, 30)))
    keys = rng.sample(range(-60, 60), rng.randint(1, 30))
    sought = SoughtKeys([pa.int32()], [pa.chunked_array([pa.array(keys, pa.int32())])])
    found = sought.rows_in_order([pa.chunked_array([pa.array(rows, pa.int32())])])
    assert found is not None
    assert found.tolist() == [n for n, row in enumerate(rows) if row in keys]


@pytest.mark.parametrize(
    ("types", "rows"), [("n", [3, 1]), ("n", [1, 1]), ("n", [1, None]), ("nn", [1, 2]), ("t", "ab")]
)
def test_rows_of_other_kinds_are_not_searched_in_order(types: str, rows: list[Any]) -> None:
    """Two rows may have one key, and a key may have several columns."""
    of = {"n": pa.int64(), "t": pa.string()}
    columns = [pa.chunked_array([pa.array(list(rows), of[kind])]) for kind in types]
    keys = [pa.chunked_array([pa.array(list(rows)[:1], of[kind])]) for kind in types]
    assert SoughtKeys([of[kind] for kind in types], keys).rows_in_order(columns) is None


def target(left: int, types: dict[str, pa.DataType], page_bytes_as_one: int = 1) -> TargetRows:
    """That may read so many bytes of the keys of a file; nothing that is called here reads a table."""
    return TargetRows(Any, Any, [], list(types), types, left, 1, page_bytes_as_one)


@pytest.mark.parametrize(("length", "page_bytes_as_one", "is_read"), [(36, 3, True), (36, 1, False), (None, 3, False)])
def test_texts_that_are_compared_in_pages_count_less(
    tmp_path: Path, length: int | None, page_bytes_as_one: int, is_read: bool
) -> None:
    """Texts of several lengths are not compared in pages."""
    texts = [f"{n:036}" if length else "x" * (36 + n % 2) + str(n) for n in range(100)]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"t": texts}), file, compression="zstd", use_dictionary=False)
    sought = SoughtKeys([pa.string()], [pa.chunked_array([[texts[8], texts[9], texts[90]]])])
    rows = target(2_000, {"t": pa.string()}, page_bytes_as_one)
    with open(file, "rb") as source, nullcontext() if is_read else pytest.raises(Declined):
        found = [(list(numbers), columns[0].to_pylist()) for numbers, columns in _pieces(rows, source, sought)]
        assert found == [([8, 9, 90], [texts[8], texts[9], texts[90]])]


def test_of_rows_that_rise_only_those_sought_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": [*range(0, 20, 2), 5, 4]}), file, row_group_size=5)
    sought = SoughtKeys([pa.int64()], [pa.chunked_array([[4, 5, 12]])])
    with open(file, "rb") as source:
        pieces = list(_pieces(target(1_000, {"n": pa.int64()}), source, sought))
    found = [(list(numbers), columns[0].to_pylist()) for numbers, columns in pieces]
    assert found == [([2], [4]), ([6], [12]), ([10, 11], [5, 4])]


def _pieces(rows: TargetRows, source: Any, sought: SoughtKeys) -> Any:
    return rows._pieces(source, pq.ParquetFile(source), sought)
