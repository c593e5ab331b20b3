"""docs/security.md names a test for what it claims: each of them exists, and none is named in half."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.unit.test_architecture import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_the_page_names_exists(file: str, test: str) -> None:
    assert (REPOSITORY / file).is_file()
    assert test.startswith("test_")
    assert test in defined_in(file)


def test_the_page_names_tests_in_that_form_alone() -> None:
    assert len(NAMED) > 40
    assert len(re.findall(r"\btest_\w+`", PAGE)) == len(re.findall(r"`tests/[\w/]+\.py::test_\w+`", PAGE))
