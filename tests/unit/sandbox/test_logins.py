"""Every server that a test starts asks for a password, so a role that logs in there needs one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def test_no_test_makes_a_role_that_nobody_could_log_in_as() -> None:
    without = [
        f"{file.relative_to(TESTS)}: {statement.strip()}; write tests.support.roles.login(role, conninfo, …)"
        for file in sorted(TESTS.rglob("*.py"))
        if file != Path(__file__)
        for statement in re.findall(r"CREATE (?:ROLE|USER) [^;\n]*\bLOGIN\b[^;\n]*", file.read_text())
        if "PASSWORD" not in statement and not statement.startswith(r"CREATE ROLE (\w+) LOGIN")
    ]
    assert without == []
