"""README and docs/: every link leads to a page and a heading that exist, every page is in the site's navigation, and
docs/formats.md leaves out nothing that the ledger keeps."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.unit.test_architecture import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted([REPOSITORY / "README.md", *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link may name: the headings, as GitHub and the site spell them, and what is marked."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    spelled = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return frozenset(spelled | set(re.findall(r'<a id="([^"]+)"', text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`(tests/[\w./-]+)`", page.read_text())
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_every_page_can_be_reached_from_the_navigation() -> None:
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    named = {page for section in nav for entry in next(iter(section.values())) for page in entry.values()}
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "decisions"}
    assert named == pages


def test_the_index_of_decisions_lists_each_record_once() -> None:
    records = sorted(page.name for page in (DOCS / "decisions").glob("2*.md"))
    assert len(records) > 20, "the rule finds no records"
    assert sorted(LINK.findall((DOCS / "decisions" / "index.md").read_text())) == records


def test_every_table_and_view_of_the_ledger_has_one_row_in_formats() -> None:
    migrations = (REPOSITORY / "include" / "tidemark" / "ledger" / "migrations").glob("*.sql")
    made = {
        name
        for migration in migrations
        for name in re.findall(r"^CREATE (?:TABLE|VIEW) tidemark\.(\w+)", migration.read_text(), re.MULTILINE)
    }
    ledger = (DOCS / "formats.md").read_text().partition("## Ledger")[2]
    assert len(made) > 20, "the rule finds no tables"
    assert sorted(made) == sorted(re.findall(r"^\| `(\w+)`", ledger, re.MULTILINE))
