"""What a process does before it begins, seen in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.capture import REPOSITORY

USE = "import sys, pyarrow; pyarrow.array([1]); print('pandas' in sys.modules)"


@pytest.mark.parametrize(
    ("before", "imported"),
    [("", True), ("from tidemark.startup import spare_pandas; spare_pandas()", False)],
    ids=["as pyarrow has it", "spared"],
)
def test_pyarrow_imports_pandas_unless_it_is_kept_from_it(before: str, imported: bool) -> None:
    assert _says(f"{before}\n{USE}") == str(imported)


def test_pandas_can_be_imported_afterwards() -> None:
    output = _says(
        "from tidemark.startup import spare_pandas; spare_pandas()\nimport pandas; print(pandas.Series([1]).sum())"
    )
    assert output == "1"


def _says(program: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(REPOSITORY / "include")},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip()
