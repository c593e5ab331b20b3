"""What README, docs/ and remedies show to be copied is what the program understands: commands, pipeline files,
connections, SQL. What needs servers is run by other tests, which read it from the page: ELSEWHERE names them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import sqlite3
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.unit.test_architecture import REPOSITORY
from tidemark.__main__ import _parser
from tidemark.config import file_reader
from tidemark.config.airflow_connections import look_up
from tidemark.errors import leaves

DOCS = REPOSITORY / "docs"
PAGES = (
    "README.md",
    *sorted(str(page.relative_to(REPOSITORY)) for place in (DOCS, DOCS / "recipes") for page in place.glob("*.md")),
)

# Page and language -> the test that runs the page's snippets of that language.
ELSEWHERE = {
    ("docs/operations.md", "sql"): "tests/capture/test_least_privilege.py",
    ("docs/own-database.md", "sql"): "tests/capture/test_own_database.py",
    ("docs/uninstall.md", "sql"): "tests/capture/test_own_database.py",
    ("docs/own-database.md", "yaml"): "tests/capture/test_own_database.py",
    ("docs/reading-the-tables.md", "sql"): "tests/target/test_other_readers.py",
    ("docs/reading-the-tables.md", "python"): "tests/target/test_other_readers.py",
    ("docs/time-travel.md", "sql"): "tests/target/test_any_moment.py",
    ("docs/time-travel.md", "python"): "tests/target/test_any_moment.py",
    ("docs/tutorial.md", "sh"): "tests/test_tutorial.py",
    **{
        (f"docs/recipes/{name}.md", "sql"): "tests/capture/preflight/test_providers.py"
        for name in ("rds", "aurora", "cloud-sql", "alloydb", "azure", "neon", "supabase", "patroni")
    },
    ("docs/table-life.md", "mermaid"): "tests/unit/schema/test_table_life.py",
}
# Of these languages nothing is shown that is neither run here nor there.
RUN_HERE = ("yaml", "json", "python", "sql", "sh", "text")
WHOLE_FILE = "source: {connection: shop_source}\ntables: [shop.*]\nlake: lake\n"


@dataclass(frozen=True, slots=True)
class Snippet:
    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:40]}"


def snippets(*languages: str) -> list[Snippet]:
    """Of pages whose language is run here."""
    listed = []
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        for _, language, body in re.findall(r"^( *)```(\w*)\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
            listed.append(Snippet(page, language, textwrap.dedent(body)))
    return [one for one in listed if one.language in languages and (one.page, one.language) not in ELSEWHERE]


def test_every_language_is_run_somewhere() -> None:
    texts = {page: (REPOSITORY / page).read_text() for page in PAGES}
    shown = {language for text in texts.values() for language in re.findall(r"^ *```(\w+)$", text, re.MULTILINE)}
    assert shown == {*RUN_HERE, *(language for _, language in ELSEWHERE)}
    for (page, language), test in ELSEWHERE.items():
        assert f"```{language}" in texts[page], f"{page} shows no {language} any more"
        assert Path(page).name in (REPOSITORY / test).read_text(), f"{test} does not read {page}"


@pytest.mark.parametrize("shown", snippets("yaml"), ids=str)
def test_a_pipeline_file_is_one_that_is_read(shown: Snippet, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    text = shown.text
    if text.startswith("conf:"):  # the page speaks of `spark` there
        text = "spark:\n" + textwrap.indent(text, "  ")
    said = yaml.safe_load(text)
    rest = {key: value for key, value in yaml.safe_load(WHOLE_FILE).items() if key not in said}
    file.write_text(yaml.safe_dump(rest) * bool(rest) + text)
    config, problems = file_reader.read(file)
    assert [str(problem) for problem in problems] == []
    assert config is not None


@pytest.mark.parametrize("shown", snippets("json"), ids=str)
def test_a_connection_is_one_that_is_understood(shown: Snippet) -> None:
    spark = look_up("spark_default", environment={"AIRFLOW_CONN_SPARK_DEFAULT": shown.text}).spark_connection()
    assert (spark.master, spark.deploy_mode, spark.refused) == ("spark://spark-master:7077", "client", "")


@pytest.mark.parametrize("shown", snippets("python"), ids=str)
def test_a_program_is_python(shown: Snippet) -> None:
    ast.parse(shown.text)


@pytest.mark.parametrize("shown", snippets("sh"), ids=str)
def test_what_is_installed_has_the_versions_that_are_tried(shown: Snippet) -> None:
    """The commands themselves need a cluster's file system."""
    tried = (REPOSITORY / "requirements.txt").read_text()
    pinned = re.findall(r"[\w-]+==[\w.]+", shown.text)
    assert pinned != []
    assert [version for version in pinned if not re.search(rf"^{re.escape(version)}\b", tried, re.MULTILINE)] == []


@pytest.mark.parametrize("shown", snippets("sql"), ids=str)
def test_a_query_of_history_means_what_the_page_says(shown: Snippet) -> None:
    """Of a column that came with the default `open`; it is SQL that anybody understands."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE history (_generation int, _commit_lsn int, state text)")
        rows = [(1, 23744511, None), (1, 23744512, None), (2, 1, None), (1, 23744600, "paid")]
        database.executemany("INSERT INTO history VALUES (?, ?, ?)", rows)
        assert [row[-1] for row in database.execute(shown.text)] == ["open", None, None, "paid"]


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """Where a command stands, and the command."""
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        found = re.findall(
            r"`((?:tidemark|make) [^`]+)`|^(?:\$ )?((?:tidemark|make) (?!sure\b)[^#\n]+)", text, re.MULTILINE
        )
        for inline, line in found:
            yield page, (inline or line).strip()
    for leaf in leaves():
        for command in re.findall(r"`(tidemark [^`]+)`", leaf.remedy):
            yield leaf.__name__, command


def test_every_command_that_is_shown_is_one() -> None:
    everywhere = sorted(set(commands()))
    assert len(everywhere) > 50, "the rule finds no commands"
    refused = [f"{where}: {command}" for where, command in everywhere if not understood(command)]
    assert refused == []


def understood(command: str) -> bool:
    """With what a reader puts in the place of `<file>`; one that is only named may lack its pipeline and table."""
    program, *words = shlex.split(re.sub(r"[\[\]…]", " ", re.sub(r"\{\w+\}|<[^>]+>|TABLE|PATTERN", "shop", command)))
    if program == "make":
        (targets,) = re.findall(r"^\.PHONY: (.*)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        return words[0] in targets.split()
    return any(parses([*words, *more]) for more in ([], ["shop"], ["shop", "shop.orders"]))


def parses(words: list[str]) -> bool:
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            _parser().parse_args(words)
        except SystemExit:
            return False
    return True
