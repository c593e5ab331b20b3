"""docs/witnesses.md has no other fault than those named here, and sets no more aside than somebody has read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_architecture import REPOSITORY
from tests.witnesses.__main__ import SUITES
from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.scoreboard import OUTCOMES, SuiteResult, kept_in, page

TEXT = (REPOSITORY / "docs" / "witnesses.md").read_text()
SECTIONS = re.split(r"^## The ([\w-]+) tests, on PostgreSQL (\d+)$", TEXT, flags=re.M)
# By suite and server.
PAGE = {(suite, int(version)): text for suite, version, text in zip(*(SECTIONS[n::3] for n in (1, 2, 3)), strict=True)}
EACH = pytest.mark.parametrize(("suite", "version"), PAGE)
# Tables without any column: Delta has none.
PARKED = {"regression": 2}
# event_trigger_login leaves a login trigger that fails, so no session of anybody can begin.
ERRORS = {"regression": 1}
# A suite in which less is compared than this was not played.
EQUAL = {"regression": 400, "isolation": 1000, "subscription": 80, "decoding": 19, "decoding-specs": 50}


def test_every_suite_has_its_section() -> None:
    assert {suite for suite, version in PAGE if version == 18} == SUITES.keys()


@EACH
def test_no_table_differs_and_no_more_are_parked_than_were_read(suite: str, version: int) -> None:
    (row,) = re.findall(r"^\| \*\*all\*\* \|(.*)\|$", PAGE[suite, version], re.M)
    counts = dict(zip(OUTCOMES, map(int, row.split("|")), strict=True))
    assert (counts["differs"], counts["marked"]) == (0, 0)
    assert (counts["parked"], counts["error"]) == (PARKED.get(suite, 0), ERRORS.get(suite, 0))
    assert counts["equal"] >= EQUAL[suite]


@EACH
def test_each_file_that_is_not_played_has_a_reason_on_the_page(suite: str, version: int) -> None:
    listed = dict(re.findall(r"^- ([\w-]+): (.+)$", PAGE[suite, version].partition("Not played:")[2], re.M))
    assert listed == dict(SUITES[suite])
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


def test_the_parts_of_a_suite_are_put_together(tmp_path: Path) -> None:
    result("isolation", "a").keep(tmp_path)
    result("isolation", "b", "2/2").keep(tmp_path)
    (kept,) = kept_in(tmp_path)
    assert (kept.files, kept.covered) == (["a", "b"], {"files": 2})
