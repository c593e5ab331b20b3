"""The shape of every benchmark: ours and the thing beside it, measured in turns, as pairs -> medians, a ratio, a goal.

    Benchmark   name, what is beside it, goal, sizes, and `pairs`: a generator that sets up, yields a pair as often as
                it is asked, and cleans up where it is closed
    Pair        what ours took and what the other took, one right after the other; every second one the other way round
    Curve       the same over a size that grows: what a plot of docs/performance.md shows

A machine is never quite idle, so what counts is the median of the ratios of pairs, not the ratio of two best times;
seconds, CPU seconds and the load at the time stand beside it. `main` is the command line of every module:

    python -m benchmarks.updates --scale small --rounds 3 --json figures.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from sandbox.checkout import this_checkout
from sandbox.steps import end_by_exception

Scale = Literal["tiny", "small", "full"]
SCALES: Final[tuple[Scale, ...]] = ("tiny", "small", "full")
ROUNDS: Final = 3

# Programs whose versions say what was measured.
PACKAGES: Final = ("pyspark", "delta-spark", "pyarrow", "psycopg", "apache-airflow")


@dataclass(frozen=True, slots=True)
class Taken:
    """What something took: seconds of the clock, and of CPU in all processes that it used here."""

    seconds: float
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """`beside` is None where ours has nothing to stand beside. `facts` are further figures, by name and unit."""

    ours: Taken
    beside: Taken | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goal:
    """`limit` of one figure of a pair:

    ratio    what ours takes, in parts of what the other takes, at most
    times    how often ours is done while the other is done once, at least
    more_s   the seconds that ours takes beyond the other's, at most
    seconds  the seconds that ours takes, at most
    peak_mb  the most memory that ours had, a fact of the pair, at most
    """

    figure: Literal["ratio", "times", "more_s", "seconds", "peak_mb"]
    limit: float

    def of(self, pair: Pair) -> float:
        ours, beside = pair.ours.seconds, 0.0 if pair.beside is None else pair.beside.seconds
        match self.figure:
            case "ratio":
                return ours / beside
            case "times":
                return beside / ours
            case "more_s":
                return ours - beside
            case "seconds":
                return ours
            case "peak_mb":
                return pair.facts["peak_mb"]

    def is_reached(self, value: float) -> bool:
        return value >= self.limit if self.figure == "times" else value <= self.limit

    def told(self, value: float | None = None) -> str:
        """A value of this figure, in words, by default the limit."""
        number = self.limit if value is None else value
        bound = "" if value is not None else "≥ " if self.figure == "times" else "≤ "
        return {
            "ratio": f"{bound}{number:.2f}x",
            "times": f"{bound}{number:.2f} times as fast",
            "more_s": f"{bound}{number:.1f} s more",
            "seconds": f"{bound}{number:.2f} s",
            "peak_mb": f"{bound}{number:.0f} MB",
        }[self.figure]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a benchmark is run with: its size, how many rounds at most, and a folder of its own."""

    size: int
    rounds: int
    folder: Path


Pairs = Generator[Pair, None, None]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One line of the table. `what` and `beside` complete "… beside …"; `sizes` are in `unit`, "full" is what the goal
    was set for."""

    name: str
    what: str
    beside: str
    goals: tuple[Goal, ...]
    unit: str
    sizes: Mapping[Scale, int]
    pairs: Callable[[Setting], Pairs]


@dataclass(frozen=True, slots=True)
class Curve:
    """One plot: `points` yields a pair for each of the sizes, which are told on the x axis."""

    name: str
    title: str
    x: str
    y: str
    ours: str
    beside: str
    sizes: Mapping[Scale, tuple[int, ...]]
    points: Callable[[Sequence[int], Path], Iterator[tuple[int, Pair]]]


class Meter:
    """Times what is called: the clock, and CPU seconds of this process, of those that it has waited for meanwhile, and
    of `pids`, which live on."""

    def __init__(self, *pids: int) -> None:
        self._stats = [Path(f"/proc/{pid}/stat") for pid in pids]

    def of(self, work: Callable[[], object]) -> Taken:
        seconds, cpu_s = time.perf_counter(), self._cpu_s()
        work()
        return Taken(time.perf_counter() - seconds, self._cpu_s() - cpu_s)

    def pair(self, number: int, ours: Callable[[], object], beside: Callable[[], object]) -> Pair:
        """Both in turns, see `in_turns`."""
        return in_turns(number, partial(self.of, ours), partial(self.of, beside))

    def _cpu_s(self) -> float:
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        ticks = 0
        for stat in self._stats:
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return sum(usage.ru_utime + usage.ru_stime for usage in own) + ticks / os.sysconf("SC_CLK_TCK")


def in_turns(number: int, ours: Callable[[], Taken], beside: Callable[[], Taken]) -> Pair:
    """Both, one after the other; which one is first changes with each round."""
    if number % 2:
        other = beside()
        return Pair(ours(), other)
    own = ours()
    return Pair(own, beside())


# --- running ---------------------------------------------------------------------------------------------------------


def measured(benchmark: Benchmark, scale: Scale, rounds: int, folder: Path) -> dict[str, Any]:
    """The benchmark's figures, as they are written; a line for each round is printed when it is over."""
    size = benchmark.sizes[scale]
    print(f"{benchmark.name}: {benchmark.what}, {size:,} {benchmark.unit}", flush=True)
    pairs: list[Pair] = []
    loads = [os.getloadavg()[0]]
    with closing(benchmark.pairs(Setting(size, rounds, folder))) as generator:
        for pair in generator:
            pairs.append(pair)
            loads.append(os.getloadavg()[0])
            print(f"  {_pair_told(benchmark, pair)}", flush=True)
            if len(pairs) == rounds:
                break
    return line_of(benchmark, scale, pairs, loads)


def line_of(benchmark: Benchmark, scale: Scale, pairs: Sequence[Pair], loads: Sequence[float]) -> dict[str, Any]:
    beside = [pair.beside for pair in pairs if pair.beside is not None]
    line: dict[str, Any] = {
        "name": benchmark.name,
        "what": benchmark.what,
        "beside": benchmark.beside,
        "scale": scale,
        "size": benchmark.sizes[scale],
        "unit": benchmark.unit,
        "rounds": len(pairs),
        "ours_s": [round(pair.ours.seconds, 3) for pair in pairs],
        "ours_cpu_s": [round(pair.ours.cpu_s, 2) for pair in pairs],
        "beside_s": [round(taken.seconds, 3) for taken in beside],
        "beside_cpu_s": [round(taken.cpu_s, 2) for taken in beside],
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "facts": {name: round(statistics.median(pair.facts[name] for pair in pairs), 3) for name in pairs[0].facts},
    }
    if beside:
        line["ratio"] = round(statistics.median(Goal("ratio", 0).of(pair) for pair in pairs), 3)
        if all(taken.cpu_s >= 0.1 for taken in beside):  # less is only what waited for a server's
            cpu = statistics.median(p.ours.cpu_s / p.beside.cpu_s for p in pairs if p.beside is not None)
            line["cpu_ratio"] = round(cpu, 3)
    line["goals"] = [
        {"figure": goal.figure, "limit": goal.limit, "reached": round(statistics.median(map(goal.of, pairs)), 3)}
        for goal in benchmark.goals
    ]
    return line


def _pair_told(benchmark: Benchmark, pair: Pair) -> str:
    parts = [f"{pair.ours.seconds:.2f} s, {pair.ours.cpu_s:.1f} CPU-s"]
    if pair.beside is not None:
        parts.append(f"beside {pair.beside.seconds:.2f} s, {pair.beside.cpu_s:.1f} CPU-s")
    parts += [goal.told(goal.of(pair)) for goal in benchmark.goals]
    parts += [f"{name} {value:,.4g}" for name, value in pair.facts.items()]
    return "; ".join(parts)


def curve_of(curve: Curve, scale: Scale, folder: Path) -> dict[str, Any]:
    """The points of one plot."""
    print(f"{curve.name}: {curve.title}", flush=True)
    points = []
    for x, pair in curve.points(curve.sizes[scale], folder):
        beside_s = None if pair.beside is None else round(pair.beside.seconds, 3)
        points.append({"x": x, "ours": round(pair.ours.seconds, 3), "beside": beside_s, **pair.facts})
        beside = "" if beside_s is None else f", beside {beside_s:.2f} s"
        print(f"  {x:>12,} {curve.x}: {pair.ours.seconds:.2f} s{beside}", flush=True)
    named = {name: getattr(curve, name) for name in ("name", "title", "x", "y", "ours", "beside")}
    return {**named, "scale": scale, "points": points}


# --- what was measured where -----------------------------------------------------------------------------------------


def surroundings() -> dict[str, Any]:
    """Machine, versions, date and commit."""
    root = this_checkout().root
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(root),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "system": platform.system(),
        },
        "versions": {
            "python": platform.python_version(),
            "java": _said([str(Path(os.environ.get("JAVA_HOME", "/usr"), "bin", "java")), "--version"]),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }


def _commit(root: Path) -> str:
    """The last commit that touched what is measured; the benchmarks themselves are no part of it."""
    git, measured_here = ["git", "-C", str(root)], ["--", "include/tidemark", "plugins", "spark_apps"]
    named = _said([*git, "log", "-1", "--format=%h", *measured_here])
    return f"{named} and changes" if _said([*git, "status", "--porcelain", *measured_here]) else named


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _said(command: Sequence[str]) -> str:
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.partition("\n")[0].strip()


# --- the table -------------------------------------------------------------------------------------------------------


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The lines as one Markdown table, which a terminal shows as well."""
    rows = [("", "beside", "size", "rounds", "ours", "the other", "ratio", "of CPU", "goal", "reached")]
    for line in lines:
        rows.append(
            (
                f"`{line['name']}` {line['what']}",
                line["beside"] or "–",
                f"{line['size']:,} {line['unit']}",
                str(line["rounds"]),
                f"{statistics.median(line['ours_s']):.1f} s",
                f"{statistics.median(line['beside_s']):.1f} s" if line["beside_s"] else "–",
                f"{line['ratio']:.2f}" if "ratio" in line else "–",
                f"{line['cpu_ratio']:.2f}" if "cpu_ratio" in line else "–",
                *_goal_told(line),
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    told = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    return "\n".join([told[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *told[1:]])


def _goal_told(line: Mapping[str, Any]) -> tuple[str, str]:
    goals = [(Goal(goal["figure"], goal["limit"]), goal["reached"]) for goal in line["goals"]]
    if not goals:
        return "–", "–"
    reached = [f"{goal.told(value)}, {'yes' if goal.is_reached(value) else 'no'}" for goal, value in goals]
    return "; ".join(goal.told() for goal, _ in goals), "; ".join(reached)


# --- command line ----------------------------------------------------------------------------------------------------


def main(benchmarks: Sequence[Benchmark] = (), curves: Sequence[Curve] = (), about: str | None = None) -> None:
    """Measure the module's benchmarks, or those that are named, and with `--curves` what its plots show.

    One that fails is said and passed over, and the process ends with 1. What `--json` names is written after each, so
    that what is measured is kept, whatever becomes of the rest.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [b.name for b in benchmarks] + [c.name for c in curves]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; by default all benchmarks")
    parser.add_argument("--scale", choices=SCALES, default="small", help="tiny: whether it runs at all (small)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of each (%(default)s)")
    parser.add_argument("--curves", action="store_true", help="measure what the plots show, too")
    parser.add_argument("--folder", type=Path, help="where servers and lakes lie (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    end_by_exception()
    if unknown := set(options.names) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    logging.basicConfig(level=logging.ERROR)
    set_up()
    chosen = [b for b in benchmarks if not options.names or b.name in options.names]
    drawn = [c for c in curves if c.name in options.names or (options.curves and not options.names)]
    figures: dict[str, Any] = {**surroundings(), "lines": [], "curves": []}
    all_of_them: list[Benchmark | Curve] = [*chosen, *drawn]
    failed = []
    for each in all_of_them:
        try:
            with scratch(options.folder) as folder:
                if isinstance(each, Benchmark):
                    figures["lines"].append(measured(each, options.scale, options.rounds, folder))
                else:
                    figures["curves"].append(curve_of(each, options.scale, folder))
        except Exception:
            traceback.print_exc()
            failed.append(each.name)
        if options.json:
            keep(figures, options.json)
    if figures["lines"]:
        print(f"\n{table(figures['lines'])}", flush=True)
    if failed:
        sys.exit(f"Not measured, see above: {', '.join(failed)}")


def keep(figures: Mapping[str, Any], file: Path) -> None:
    """Whoever is killed meanwhile leaves what was there before."""
    aside = file.with_suffix(".new")
    aside.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    aside.replace(file)


def set_up() -> None:
    """Spark, its jars and the archives of its classes are the checkout's, as in the commands of make."""
    checkout = this_checkout()
    for name, value in checkout.environment(os.environ).items():
        os.environ[name] = value
    os.environ["PYTHONPATH"] = os.pathsep.join(str(checkout.root / folder) for folder in ("include", "plugins"))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-", dir=folder, ignore_cleanup_errors=True) as made:
        yield Path(made)
