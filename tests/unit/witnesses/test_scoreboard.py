"""docs/witnesses.md has no other fault than those named here, and sets no more aside than somebody has read."""

from __future__ import annotations

import re

import pytest

from tests.unit.test_architecture import REPOSITORY
from tests.witnesses import isolation_suite, regression_suite
from tests.witnesses.scoreboard import OUTCOMES

TEXT = (REPOSITORY / "docs" / "witnesses.md").read_text()
SECTIONS = re.split(r"^## The (\w+) tests, on PostgreSQL \d+$", TEXT, flags=re.M)
PAGE = dict(zip(SECTIONS[1::2], SECTIONS[2::2], strict=True))
# Tables without any column: Delta has none.
PARKED = {"regression": 2}
# event_trigger_login leaves a login trigger that fails, so no session of anybody can begin.
ERRORS = {"regression": 1}
EXCLUDED = {"regression": regression_suite.EXCLUDED, "isolation": isolation_suite.EXCLUDED_SPECS}


@pytest.mark.parametrize("suite", PAGE)
def test_no_table_differs_and_no_more_are_parked_than_were_read(suite: str) -> None:
    (row,) = re.findall(r"^\| \*\*all\*\* \|(.*)\|$", PAGE[suite], re.M)
    counts = dict(zip(OUTCOMES, map(int, row.split("|")), strict=True))
    assert (counts["differs"], counts["marked"]) == (0, 0)
    assert (counts["parked"], counts["error"]) == (PARKED.get(suite, 0), ERRORS.get(suite, 0))
    assert counts["equal"] > 100


@pytest.mark.parametrize("suite", PAGE)
def test_each_file_that_is_not_played_has_a_reason_on_the_page(suite: str) -> None:
    listed = dict(re.findall(r"^- ([\w-]+): (.+)$", PAGE[suite].partition("Not played:")[2], re.M))
    assert listed == dict(EXCLUDED[suite])
    assert len(listed) <= 9
