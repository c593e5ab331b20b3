"""docs/performance.md says what the benchmarks measure, and in figures what docs/performance.json holds; nobody here
looks at a clock."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as all_of_them
from benchmarks import decode, page
from benchmarks import pairs as measuring
from benchmarks.pairs import Benchmark, Goal, Pair, Pairs, Setting, Taken, in_turns, line_of, table
from benchmarks.pipeline import Refused
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


def test_the_file_tells_of_lines_and_plots_what_the_benchmarks_tell() -> None:
    for line in FIGURES["lines"]:
        benchmark = benchmarks()[line["name"]]
        told = (benchmark.what, benchmark.beside, benchmark.unit, benchmark.sizes[line["scale"]])
        assert (line["what"], line["beside"], line["unit"], line["size"]) == told
    for curve in FIGURES["curves"]:
        drawn = curves()[curve["name"]]
        told_of = [getattr(drawn, name) for name in ("title", "x", "y", "ours", "beside")]
        assert [curve[name] for name in ("title", "x", "y", "ours", "beside")] == told_of
        assert tuple(point["x"] for point in curve["points"]) == drawn.sizes[curve["scale"]]


def test_the_page_says_where_each_line_and_plot_was_measured() -> None:
    below_the_table = page.written(FIGURES).partition("\n\n")[2].split("\n\n")
    of = re.compile(r"(Plots of )?((?:`[\w-]+`(?:, )?)+): \d{4}-\d\d-\d\d, commit ")
    found: dict[bool, list[str]] = {False: [], True: []}
    for paragraph in below_the_table:
        match = of.match(paragraph)
        assert match is not None, paragraph
        found[match[1] is not None] += re.findall(r"`([\w-]+)`", match[2])
    assert sorted(found[False]) == sorted(line["name"] for line in FIGURES["lines"])
    assert sorted(found[True]) == sorted(curve["name"] for curve in FIGURES["curves"])


def test_what_is_said_of_figures_elsewhere_is_what_the_file_says() -> None:
    """README's table, and the sentences of the page that repeat a figure: whoever publishes others says others."""
    lines = {line["name"]: line for line in FIGURES["lines"]}
    ours = {name: statistics.median(line["ours_s"]) for name, line in lines.items()}
    beside = {name: statistics.median(line["beside_s"]) for name, line in lines.items() if line["beside_s"]}
    facts = {name: line["facts"] for name, line in lines.items()}
    readme = (REPOSITORY / "README.md").read_text().partition("## How fast")[2].partition("\n## ")[0]
    drain = facts["drain-a"]
    for sentence in (
        f"{round(drain['changes_per_s'], -3):,.0f} changes/s, {lines['drain-a']['goals'][0]['reached']:.1f} times",
        f"receives; {drain['peak_mb']:.0f} MB",
        f"| {ours['new-table']:.1f} s; {lines['new-table']['ratio']:.2f} of what a plain PySpark script takes",
        f"| {ours['many-20-whole']:.1f} s; in a warm session {ours['many-20']:.1f} s, "
        f"{lines['many-20']['ratio']:.2f} of what",
        f"| {ours['run-1']:.1f} s; a `spark-submit` that only opens a session takes {beside['run-1']:.1f} s",
        f"| {ours['backfill']:.0f} s, of which {beside['backfill']:.0f} s of reading; "
        f"{facts['backfill']['reader_mb']:.0f} MB a reader",
        f"| {ours['latency']:.0f} s in the median",
    ):
        assert sentence in readme
    page_at_once = " ".join(PAGE.split())
    many = [ours[f"many-{tables}"] for tables in (20, 40, 200, 500)]
    for sentence in (
        f"{facts['drain-c']['receive_s']:.1f} s in `drain-c` and {facts['drain-d']['receive_s']:.2f} s in `drain-d`",
        f"can be more than {beside['drain-c'] / facts['drain-c']['receive_s']:.1f} times as fast",
        f"behind {beside['backfill']:.1f} s of reading",
        f"`run-1000` has {ours['run-1000']:.1f} s",
        f"only opens a session takes {beside['run-1']:.1f} s",
        f"({facts['verify']['verify_read_s']:.1f} s, and {facts['verify']['backfill_read_s']:.1f} s beside it)",
        "take {:.1f}, {:.1f}, {:.1f} and {:.1f} s".format(*many),
        f"**Deletion vectors** take {lines['delta-vectors']['ratio']:.1f} of the time",
    ):
        assert sentence in page_at_once


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
    benchmark = Benchmark("a", "what", "that", goals, "rows", {"tiny": 1, "small": 2, "full": 3}, one_pair)
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


def failing(_: Setting) -> Pairs:
    yield Pair(Taken(1.0))
    raise Refused("it is not what it should be")


def one_pair(_: Setting) -> Pairs:
    yield Pair(Taken(2.0))


def named(name: str, pairs: Callable[[Setting], Pairs]) -> Benchmark:
    return Benchmark(name, "what", "", (), "rows", {"tiny": 1, "small": 2, "full": 3}, pairs)


def test_one_that_fails_leaves_the_others_their_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("set_up", "end_by_exception"):
        monkeypatch.setattr(measuring, name, lambda: None)
    monkeypatch.setattr(measuring, "surroundings", dict)
    monkeypatch.setattr(sys, "argv", ["it", "--json", str(tmp_path / "it.json"), "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"Not measured, see above: bad$"):
        measuring.main([named("first", one_pair), named("bad", failing), named("last", one_pair)])
    assert [line["name"] for line in json.loads((tmp_path / "it.json").read_text())["lines"]] == ["first", "last"]
    assert "it is not what it should be" in capsys.readouterr().err


def test_what_was_measured_before_an_interruption_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(command: list[str], **_: Any) -> int:
        module = command[2].partition(".")[2]
        line = line_of(named(module, one_pair), "small", [Pair(Taken(2.0))], [0.0])
        figures = {"lines": [line], "curves": []}
        Path(command[command.index("--json") + 1]).write_text(json.dumps(figures))
        if module == "age":
            raise KeyboardInterrupt
        return 0

    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "growth.json").write_text("of a run before")
    for name in ("set_up", "end_by_exception"):
        monkeypatch.setattr(all_of_them, name, lambda: None)
    monkeypatch.setattr(all_of_them, "surroundings", dict)
    monkeypatch.setattr(all_of_them, "waited_for", measure)
    monkeypatch.setattr(all_of_them, "this_checkout", lambda: SimpleNamespace(made=tmp_path, root=tmp_path))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "daily", "age", "growth"])
    with pytest.raises(KeyboardInterrupt):
        all_of_them.main()
    kept = json.loads((tmp_path / "bench" / "figures.json").read_text())
    assert [line["name"] for line in kept["lines"]] == ["daily", "age"]
    assert "`age`" in capsys.readouterr().out


def test_the_speed_of_decoding_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["decode", "--changes", "620"])
    decode.main()
    assert "µs per change" in capsys.readouterr().out
