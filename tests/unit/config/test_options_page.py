"""The tables of docs/configuration.md are generated from the models."""

from __future__ import annotations

import re

from sandbox.documents import options_page
from tests.unit.test_architecture import REPOSITORY
from tidemark.config.sections import SECTIONS

PAGE = (REPOSITORY / "docs" / "configuration.md").read_text()


def test_the_tables_of_options_are_current() -> None:
    assert options_page.with_tables(PAGE) == PAGE, "python -m sandbox.documents.options_page docs/configuration.md"


def test_every_section_has_a_table() -> None:
    tables = re.findall(r"<!-- table: (.+) -->", PAGE)
    assert sorted(tables) == sorted([*(name or "the file" for name in SECTIONS), "fixed bounds"])
    assert PAGE.count("<!-- end of table -->") == len(tables)


def test_a_table_that_was_changed_by_hand_is_written_anew() -> None:
    assert options_page.with_tables(PAGE.replace("| `slot` |", "| `slots` |")) == PAGE
