"""docs/performance.md says what the benchmarks measure, and in figures what docs/performance.json holds; nobody here
looks at a clock."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import page
from benchmarks.pairs import Benchmark, Goal, Pair, Taken, in_turns, line_of, table
from benchmarks.registry import BY_ITSELF, MODULES, benchmarks, benchmarks_of, curves, curves_of
from sandbox.__main__ import COMMANDS
from tests.unit.test_architecture import REPOSITORY

PAGE = (REPOSITORY / "docs" / "performance.md").read_text()
FIGURES = json.loads(page.file().read_text())


def test_every_module_with_a_benchmark_is_in_the_registry() -> None:
    with_some = {
        module.stem
        for module in (REPOSITORY / "benchmarks").glob("*.py")
        if re.search(r"^(BENCHMARKS|CURVES) = ", module.read_text(), re.MULTILINE)
    }
    assert with_some == {*MODULES, *BY_ITSELF}
    assert all(benchmarks_of(module) or curves_of(module) for module in with_some)


def test_names_are_given_once() -> None:
    names = [b.name for module in (*MODULES, *BY_ITSELF) for b in benchmarks_of(module)]
    names += [c.name for module in MODULES for c in curves_of(module)]
    assert len(names) == len(set(names)) == len(benchmarks()) + len(curves())


def test_the_page_has_one_row_for_each_benchmark_that_says_how() -> None:
    how = PAGE.partition("## What is measured")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", how, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`([\w-]+)`", row)] == list(benchmarks())


def test_the_pages_figures_are_those_of_the_file() -> None:
    between = PAGE.partition(page.BEGIN)[2].partition(page.END)[0].strip()
    assert between == page.written(FIGURES)


def test_the_files_goals_are_those_of_the_benchmarks() -> None:
    of_the_file = {
        line["name"]: [(goal["figure"], goal["limit"]) for goal in line["goals"]] for line in FIGURES["lines"]
    }
    assert of_the_file == {
        name: [(goal.figure, goal.limit) for goal in benchmark.goals]
        for name, benchmark in benchmarks().items()
        if name in of_the_file
    }


def test_every_plot_of_the_file_is_drawn_and_shown() -> None:
    drawn = {file.name for file in (REPOSITORY / "docs" / "pictures").glob("performance-*.svg")}
    assert drawn == {f"performance-{curve['name']}.svg" for curve in FIGURES["curves"]}
    assert drawn == set(re.findall(r"\(pictures/(performance-[\w-]+\.svg)\)", PAGE))
    assert {curve["name"] for curve in FIGURES["curves"]} <= set(curves())


def test_make_knows_what_the_page_names() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"make (bench[\w-]*)", PAGE))
    assert targets == {"bench", "bench-latency"} <= COMMANDS.keys()
    setup = next(line for line in makefile.splitlines() if line.endswith(": setup"))
    assert targets <= set(setup.removesuffix(": setup").split())


def test_a_goal_is_of_the_median_of_the_pairs() -> None:
    pairs = [
        Pair(Taken(1.0, 2.0), Taken(4.0, 1.0)),
        Pair(Taken(3.0, 2.0), Taken(4.0, 1.0)),
        Pair(Taken(9.0, 2.0), Taken(3.0, 1.0)),
    ]
    goals = (Goal("ratio", 0.5), Goal("times", 2.0), Goal("more_s", 0.0), Goal("seconds", 4.0))
    benchmark = Benchmark("a", "what", "that", goals, "rows", {"tiny": 1, "small": 2, "full": 3}, lambda _: iter(()))
    line = line_of(benchmark, "small", pairs, [0.5, 1.5])
    assert [goal["reached"] for goal in line["goals"]] == [0.75, 1.333, -1.0, 3.0]
    assert (line["ratio"], line["cpu_ratio"], line["load"], line["size"]) == (0.75, 2.0, [0.5, 1.5], 2)
    told = table([line]).splitlines()[-1]
    assert "0.75x, no; 1.33 times as fast, no; -1.0 s more, yes; 3.00 s, yes" in told


@pytest.mark.parametrize(
    ("number", "order"), [(0, ["ours", "beside"]), (1, ["beside", "ours"]), (2, ["ours", "beside"])]
)
def test_which_one_is_first_changes_with_each_round(number: int, order: list[str]) -> None:
    called: list[str] = []

    def take(name: str, seconds: float) -> Taken:
        called.append(name)
        return Taken(seconds)

    pair = in_turns(number, lambda: take("ours", 1), lambda: take("beside", 2))
    assert (called, pair) == (order, Pair(Taken(1), Taken(2)))
