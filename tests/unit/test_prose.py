"""Checks the first lines of modules, and the names of modules and functions, for riddles."""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.test_architecture import LIBRARY_MODULES, REPOSITORY

# By what they are called in a message -> the file. Of plugins/, too.
MODULES = LIBRARY_MODULES | {
    path.relative_to(REPOSITORY).as_posix(): path for path in sorted((REPOSITORY / "plugins").rglob("*.py"))
}

# The verbs that a module's first line may start with. A new verb is added here, a noun is not.
VERBS = {
    *("Adds", "Answers", "Applies", "Assigns", "Begins", "Builds", "Calls", "Captures", "Changes", "Checks"),
    *("Chooses", "Collects", "Commits", "Compacts", "Compares", "Computes", "Continues", "Converts"),
    *("Counts", "Creates", "Decides", "Decodes", "Defines", "Deletes", "Derives", "Describes", "Divides", "Ends"),
    *("Fetches", "Finds", "Folds", "Follows", "Formats", "Gathers", "Gives", "Grants", "Holds", "Implements"),
    *(
        "Joins",
        "Judges",
        "Keeps",
        "Lists",
        "Lets",
        "Links",
        "Loads",
        "Logs",
        "Makes",
        "Marks",
        "Masks",
        "Matches",
        "Merges",
    ),
    *(
        "Mounts",
        "Moves",
        "Names",
        "Numbers",
        "Offers",
        "Opens",
        "Orders",
        "Parses",
        "Plans",
        "Prevents",
        "Prints",
        "Proves",
    ),
    *("Quotes", "Reads", "Rebuilds", "Recognises", "Records", "Registers", "Removes", "Renders", "Replaces"),
    *(
        "Reports",
        "Reserves",
        "Resolves",
        "Runs",
        "Selects",
        "Sends",
        "Serves",
        "Sets",
        "Shows",
        "Starts",
        "Stores",
        "Streams",
    ),
    *("Submits", "Tests", "Turns", "Waits", "Walks", "Watches", "Writes"),
}

# Names that hide their object. `looking.py`: at what?
HIDING = {
    *("advanced", "asking", "begun", "belongings", "beside", "crumbs", "examining", "followed", "found", "gone"),
    *("known", "levelling", "looking", "making", "relearning", "retiring", "said", "seen", "spreading", "survey"),
    *("taking_over", "telling", "told", "unseen", "wanted"),
}

# Verbs of seeing and saying. Code reads, compares, records, returns and logs.
SAYING = re.compile(r"_?(look|looks|told|tell|says|said|asks|asked|knows|known|found|seen|unseen)(_.*)?")
# A name that an interface outside of the library gives, and a verb that means something else.
ALLOWED = {"tell", "look_up"}


def first_line(module: str) -> str:
    text = ast.get_docstring(ast.parse(MODULES[module].read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def starts_with_a_verb(line: str) -> bool:
    word = re.match(r"\w+", line)
    return word is not None and word[0] in VERBS


@pytest.mark.parametrize("module", MODULES)
def test_the_first_line_of_a_module_says_what_it_does(module: str) -> None:
    assert starts_with_a_verb(first_line(module)), first_line(module)


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("Reads the slot.", True),
        ("Manifest -> rows.", False),
        ("What a snapshot saw: text -> `Snapshot`.", False),
        ("The states of a table.", False),
        ("", False),
    ],
)
def test_the_rule_of_first_lines_tells_a_riddle(line: str, plain: bool) -> None:
    assert starts_with_a_verb(line) is plain


def test_no_module_has_a_name_that_hides_its_object() -> None:
    assert [name for name in LIBRARY_MODULES if name.rpartition(".")[2] in HIDING] == []


def test_no_function_or_class_is_named_by_a_verb_of_seeing_or_saying() -> None:
    definitions = {
        f"{module}.{node.name}": node.name
        for module, path in LIBRARY_MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert len(definitions) > 500, "the rule finds no definitions"
    saying = [place for place, name in definitions.items() if SAYING.fullmatch(name.lower())]
    assert [place for place in saying if place.rpartition(".")[2] not in ALLOWED] == []
