"""A chunk has one record for each of its durable stages, and the package's docstring lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tidemark import backfill

LIBRARY = Path(backfill.__file__).parent.parent
# By what a chunk is told from all others, and from other attempts at it.
IDENTITY = {"backfill", "chunk", "attempt"}


def listed() -> dict[str, str]:
    """Per record of the docstring's list its module."""
    return dict(re.findall(r"^    ([A-Z]\w+) +(\w+(?:\.\w+)+) ", backfill.__doc__ or "", re.MULTILINE))


def records() -> dict[str, tuple[str, set[str]]]:
    """Per class of the library its module and the names of its fields."""
    classes = {}
    for path in LIBRARY.rglob("*.py"):
        module = ".".join(path.relative_to(LIBRARY).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                fields = [
                    n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                ]
                classes[node.name] = (module, set(fields))
    return classes


def test_the_list_names_the_records_where_they_are() -> None:
    there = records()
    assert list(listed()) == ["Range", "ReadChunk", "Claim", "ChunkResult"]
    assert {name: there[name][0] for name in listed()} == listed()


def test_no_other_record_is_of_one_chunk_but_its_watermark() -> None:
    of_a_chunk = {name for name, (_, fields) in records().items() if fields >= IDENTITY}
    assert of_a_chunk == set(listed()) - {"Range"} | {"Watermark"}
