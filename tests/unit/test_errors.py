"""Every error says whose move it is and what to do, and docs/errors.md has a heading for it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tidemark.errors import Move, SlotInvalidated, TidemarkError, leaves

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
LEAVES = sorted(leaves(), key=lambda leaf: leaf.__name__)


def sections() -> dict[str, str]:
    """The text below each heading of an error, `### Name`."""
    pieces = re.split(r"^### +(.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name.strip("` "): text.partition("\n## ")[0].strip()
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
class TestLeaf:
    def test_says_whose_move_it_is_what_happened_and_what_to_do(self, leaf: type[TidemarkError]) -> None:
        assert leaf.move in Move
        assert leaf.happened
        assert not leaf.happened.endswith("."), "the full stop is added between the two sentences"
        assert leaf.remedy.endswith((".", ")", "`")), "the remedy is a sentence"
        assert len(leaf.remedy.split()) >= 5

    def test_is_raised_with_all_its_facts_and_survives_a_process_border(self, leaf: type[TidemarkError]) -> None:
        error = leaf(**dict.fromkeys(leaf.fact_names(), "x"))
        assert not [name for name in leaf.fact_names() if f"{{{name}" in str(error)]
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is leaf
        assert str(again) == str(error)

    def test_has_a_heading_with_a_cause_and_something_to_do(self, leaf: type[TidemarkError]) -> None:
        text = sections().get(leaf.__name__)
        assert text, f"docs/errors.md has no heading ### {leaf.__name__}"
        assert f"**{leaf.move}**" in text
        assert "**What to do.**" in text


def test_the_page_names_no_error_that_does_not_exist() -> None:
    headings = {name for name in sections() if re.fullmatch(r"[A-Z][A-Za-z]+", name)}
    assert headings - {leaf.__name__ for leaf in LEAVES} == set()


def test_a_missing_fact_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="takes the facts"):
        SlotInvalidated(slot="orders")
