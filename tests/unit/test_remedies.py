"""Every remedy is followed by a test, or stands here with the reason why none can follow it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tidemark.errors import Move, leaf_of, leaves

TESTS = Path(__file__).resolve().parents[1]

# Whose move it is: nobody's but Tidemark's. There is nothing that a test could do as it is said.
REPORT_IT = frozenset(
    {
        "ChunksMissing",
        "MalformedMessage",
        "MergeBroken",
        "MovesNotResolved",
        "SchemaDisagrees",
        "SchemaVersionClash",
        "TableLifeBroken",
    }
)

# It is over by itself, and says so.
BY_ITSELF = frozenset({"TargetAhead"})

# Their remedies are sentences that no test has followed to the end so far.
NOT_YET: frozenset[str] = frozenset()


def walked() -> Iterator[tuple[str, str]]:
    """Error -> test, as the marks `walks` have them."""
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.walks":
                for name in node.args:
                    assert isinstance(name, ast.Constant), f"{file.name}: name the error itself"
                    yield name.value, file.name


def test_every_remedy_is_followed_by_a_test() -> None:
    walks = dict(walked())
    assert set(walks) - {leaf.__name__ for leaf in leaves()} == set(), "no such error"
    assert {leaf.__name__ for leaf in leaves()} - set(walks) == REPORT_IT | BY_ITSELF | NOT_YET


def test_what_is_not_followed_asks_for_nothing_but_a_report() -> None:
    for name in BY_ITSELF:
        leaf = leaf_of(name)
        assert leaf is not None
        assert leaf.remedy.startswith("Nothing is to be done")
    for name in REPORT_IT:
        leaf = leaf_of(name)
        assert leaf is not None
        assert leaf.move is Move.BUG
        assert "eport it" in leaf.remedy
