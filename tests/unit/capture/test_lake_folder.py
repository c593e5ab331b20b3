"""A folder of the lake -> whether a Delta table lies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.capture.lake_folder import has_delta_table
from tidemark.storage.store import Store


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], False),
        (["_staged_commits/"], False),  # Hadoop's mark of a folder, which stays in a bucket when its files are gone
        (["_last_checkpoint"], False),
        (["_staged_commits/", "00000000000000000007.json"], True),
        (["00000000000000000010.checkpoint.parquet"], True),
    ],
)
def test_a_log_without_a_version_is_no_table(names: list[str], expected: bool, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for name in names:
        store.write_atomic(f"shop/current/a/_delta_log/{name}{'.mark' if name.endswith('/') else ''}", b"{}")
    assert has_delta_table(store, "shop/current/a") is expected
