"""What the documents let Spark fetch is what the lock's Spark is tested with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandbox.setup.jars import JARS
from tidemark.capture.preflight.spark_findings import DELTA_PACKAGE
from tidemark.errors import DeltaMissing

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "docs/own-database.md", "docs/operations.md")


def test_it_is_the_jar_of_the_checkout() -> None:
    assert JARS[0].coordinates == DELTA_PACKAGE
    assert DELTA_PACKAGE in DeltaMissing.remedy


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_it_as_it_is(page: str) -> None:
    assert set(re.findall(r"io\.delta:delta-spark[\w.:]+", (REPOSITORY / page).read_text())) == {DELTA_PACKAGE}
