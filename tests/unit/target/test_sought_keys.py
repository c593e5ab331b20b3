"""Row groups that cannot have one of the keys are told by their bounds, of whole numbers and of texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.target.driver import target_rows
from tidemark.target.driver.target_rows import SoughtKeys, _bounds_of

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
            low, high = _bounds_of(footer, group, ["t", "n"])
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
