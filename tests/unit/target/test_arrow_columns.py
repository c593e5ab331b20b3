"""`picked` gives the rows that Arrow's `take` gives, whatever their order, and copies few rows out of many."""

import numpy as np
import pyarrow as pa
import pytest

from tidemark.target.driver.arrow_columns import picked

VALUES = pa.chunked_array([[10, 11, None], [13, 14], [15, 16, 17, 18, 19]], pa.int64())
ROWS = {
    "all": range(10),
    "most, from the middle": range(3, 9),
    "few": range(2, 4),
    "one": [7],
    "with a gap": [0, 1, 2, 3, 5, 6, 7],
    "ends as if without a gap": [0, 2, 1, 3, 4, 5],
    "backwards": [6, 5, 4, 3, 2, 1],
    "twice": [1, 2, 2, 3, 4, 5],
    "none": [],
}


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_are_those_of_take(name: str) -> None:
    rows = np.array(ROWS[name], np.int64)
    table = pa.table({"n": VALUES, "text": VALUES.cast(pa.string())})
    assert picked(VALUES, rows).to_pylist() == VALUES.take(pa.array(rows)).to_pylist()
    assert picked(table, rows).to_pylist() == table.take(pa.array(rows)).to_pylist()


def test_no_rows_of_nothing() -> None:
    assert picked(VALUES[:0], np.empty(0, np.int64)).to_pylist() == []


def test_few_rows_do_not_keep_all_others_in_memory() -> None:
    many = pa.chunked_array([pa.array(np.arange(100_000))])
    assert picked(many, np.arange(500, 600)).get_total_buffer_size() < 2_000
    assert picked(many, np.arange(500, 60_000)).get_total_buffer_size() == many.get_total_buffer_size()
