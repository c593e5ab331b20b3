"""A remedy that is followed to the letter: a test is told of an error, quotes what to do, and does that.

`@pytest.mark.walks("SlotMissing", …)` names the errors whose remedies a test follows; the fixture `told` holds the test
to having been told each of them, with the words that it then does. tests/unit/test_remedies.py holds the tree to it:
each of its leaves is walked by some test, or stands there with the reason why it cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.errors import TidemarkError, leaf_of
from tidemark.formats.error_record import ErrorRecord


class Told:
    """Which errors a test was told."""

    def __init__(self) -> None:
        self.leaves: set[str] = set()

    @contextmanager
    def __call__(self, leaf: type[TidemarkError], *advice: str) -> Iterator[pytest.ExceptionInfo[TidemarkError]]:
        """The block ends with the error, whose message says all that `advice` quotes."""
        with pytest.raises(leaf) as raised:
            yield raised
        self.read(leaf.__name__, str(raised.value), *advice)

    def parked(self, error: ErrorRecord | None, kind: str, *advice: str) -> str:
        """It stands with a table in the ledger; the message."""
        assert error is not None
        assert error.kind == kind, error
        self.read(kind, error.message, *advice)
        return error.message

    def read(self, kind: str, text: str, *advice: str) -> None:
        """It stands in a log or on a screen, as a whole."""
        leaf = leaf_of(kind)
        assert leaf is not None
        for piece in re.split(r"\{[^{}]*\}", leaf.remedy.replace("{{", "{").replace("}}", "}")):
            assert piece in text, f"{kind}: its remedy does not stand there as a whole:\n{text}"
        for words in advice:
            assert words in text, f"{kind} does not say {words!r}:\n{text}"
        self.leaves.add(kind)


def ends_equal(shop: Environment) -> None:
    """One more run, and every table is what its source is; a second one changes nothing."""
    shop.let_leases_end()
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
