"""docs/witnesses.md has no other fault than those named here, and sets no more aside than somebody has read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_architecture import REPOSITORY
from tests.witnesses import isolation_suite, regression_suite
from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.scoreboard import OUTCOMES, SuiteResult, kept_in, page

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


def result(suite: str, file: str, part: str = "1/1") -> SuiteResult:
    return SuiteResult(suite, 18, "rows", part, [file], [TableVerdict(file, "t", "equal")], {"files": 1}, {})


def test_a_suite_that_is_played_alone_leaves_the_sections_of_the_others() -> None:
    before = page([result("isolation", "a"), result("regression", "b")])
    after = page([result("isolation", "c")], before)
    assert [line for line in after.splitlines() if line.startswith(("## ", "| a", "| b", "| c"))] == [
        "## The regression tests, on PostgreSQL 18",
        "| b | 1 |  |  |  |  |  |  |",
        "## The isolation tests, on PostgreSQL 18",
        "| c | 1 |  |  |  |  |  |  |",
    ]


def test_a_run_that_goes_on_adds_to_what_an_ended_one_kept(tmp_path: Path) -> None:
    result("isolation", "a").keep(tmp_path)
    result("isolation", "b").keep(tmp_path, goes_on=True)
    (kept,) = kept_in(tmp_path)
    assert (kept.files, kept.covered) == (["a", "b"], {"files": 2})
