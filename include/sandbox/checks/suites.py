"""`make test`, `lint`, `simulation`, `soak`, `faults`, `page`, `bench`, …: the tools, and how long each took."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from sandbox.checkout import Checkout
from sandbox.services.postgres import MEMORY, make_outside
from sandbox.setup import atheris, axe, postgres17, system_packages
from sandbox.setup.jars import yarn_jars
from sandbox.steps import StepFailed, Steps, run, waited_for
from tidemark.spark_submit.jar_versions import Jar, azure_jars, google_jars


def lint(checkout: Checkout) -> int:
    return _all(checkout, _lint(checkout))


# Two processes with a Spark of their own, and about as much to do: a JVM takes half a minute of CPU before it is at its
# speed, so whatever needs one is here. The tests of Airflow are a third process, which waits for its clock, and those
# of captures a fourth one, which wait for leases and servers. All other tests are the fifth.
_MERGES_ELSEWHERE: Final = (
    "tests/target/test_any_moment.py",
    "tests/target/test_chunks_as_by_spark.py",
    "tests/target/test_columns_come_and_go.py",
    "tests/target/test_whole_chunks.py",
    "tests/target/test_wide_tables.py",
)
WITH_SPARK: Final = {
    "tests of merges": ("tests/target", "tests/lake", *(f"--ignore={file}" for file in _MERGES_ELSEWHERE)),
    "tests of faults": ("tests/faults", "tests/scenarios", "tests/simulation", *_MERGES_ELSEWHERE),
}
SCHEDULER: Final = "tests/airflow"
CAPTURE: Final = ("tests/capture",)
# Three JVMs and an Airflow take six gigabytes, and what tests write about one.
LEAST_FREE: Final = 4 * 2**30
LEAST_AVAILABLE: Final = 12 * 2**30

# What `make faults` and `make scheduler` play, and `make test` does not.
NOT_THOROUGH: Final = ("-m", "not thorough")


def test(checkout: Checkout) -> int:
    """Format and lint, then types and all tests, six processes side by side; or the tests that TESTS names alone."""
    if chosen := os.environ.get("TESTS", "").split():
        return _all(checkout, {"chosen tests": _pytest(checkout, "chosen tests", chosen)})
    lint = _lint(checkout)
    types = {"types": lint.pop("types")}  # it keeps one core busy for a third of a minute
    linted = _all(checkout, lint)
    tested = side_by_side(checkout, whole(checkout) | types)
    return max(linted, tested)


def whole(checkout: Checkout) -> dict[str, list[str]]:
    """All tests of `make test`, in five processes: title -> command."""
    apart = {**WITH_SPARK, "tests of Airflow": (SCHEDULER,), "tests of captures": CAPTURE}
    ignored = [f"--ignore={path}" for paths in apart.values() for path in paths if not path.startswith("-")]
    selections = {
        **{title: [*folders, *NOT_THOROUGH] for title, folders in apart.items()},
        "other tests": ["tests", *ignored, *NOT_THOROUGH],
    }
    return {title: _pytest(checkout, title, paths) for title, paths in selections.items()}


def unit(checkout: Checkout) -> int:
    """The tests that need neither a server nor Java."""
    return _all(checkout, {"unit tests": _pytest(checkout, "unit tests", ["tests/unit", *NOT_THOROUGH])})


def scratch(checkout: Checkout, memory: Path = MEMORY, meminfo: Path = Path("/proc/meminfo")) -> Path:
    """Where tests write: a folder in memory where there is plenty, else one of the checkout.

    A test's databases and Delta tables are thousands of small files, and to make them on a disk was half of the CPU of
    the tests without Spark.
    """
    if _is_usable(memory) and _available(meminfo) >= LEAST_AVAILABLE:
        digest = hashlib.sha256(str(checkout.root).encode()).hexdigest()[:12]
        return make_outside(memory / f"tidemark-tests-{digest}", (os.geteuid(), os.getegid()), 0o700)
    folder = checkout.made / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


def _is_usable(memory: Path) -> bool:
    """In containers it is often tiny, or nothing may be executed in it."""
    if not memory.is_dir() or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(memory).free >= LEAST_FREE


def _available(meminfo: Path) -> int:
    """Bytes of memory that may be used; 0 if the system does not say."""
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _pytest(checkout: Checkout, title: str, chosen: list[str]) -> list[str]:
    name = title.replace(" ", "-")
    temporary = scratch(checkout) / name
    cache = checkout.made / "cache" / name
    return ["pytest", *chosen, "-q", "--durations=10", "-o", f"cache_dir={cache}", f"--basetemp={temporary}"]


# Files of tests/simulation -> the share of TIDEMARK_SIMULATION_SEEDS that each plays: with Spark or a pair of servers a
# tenth, and fifty times as many of what needs neither PostgreSQL nor Spark.
SIMULATIONS: Final = {
    "test_pure_parts": 50.0,
    "test_chunks_against_a_model": 1.0,
    "test_alterations_of_columns": 1.0,
    "test_altered_tables": 1.0,
    "test_pairs_of_deaths": 0.25,
    "test_failovers": 0.1,
    "test_backfill_simulation": 0.1,
    "test_simulation": 0.1,
    "test_any_moment": 0.1,
    "test_names": 0.1,
}


def simulation(checkout: Checkout) -> int:
    """Many seeds of every simulation: 200 where nothing names another number."""
    seeds = int(os.environ.get("TIDEMARK_SIMULATION_SEEDS") or 200)
    worst = 0
    for name, share in SIMULATIONS.items():
        os.environ["TIDEMARK_SIMULATION_SEEDS"] = str(max(1, int(share * seeds)))
        worst = max(worst, _all(checkout, {name: _pytest(checkout, name, [f"tests/simulation/{name}.py"])}))
    return worst


def soak(checkout: Checkout) -> int:
    """A pipeline that is never left alone, for TIDEMARK_SOAK_MINUTES, 20 where nothing names another number; then the
    same of one that follows its source."""
    both = {"soak": SOAK, "soak-following": SOAK_FOLLOWING}
    return _all(checkout, {name: _pytest(checkout, name, [path]) for name, path in both.items()})


SOAK: Final = "tests/simulation/test_soak.py"
SOAK_FOLLOWING: Final = "tests/simulation/test_soak_following.py"
_ALTERATIONS: Final = "tests/scenarios/test_alterations.py"
# Played by `make faults` as a whole; and what of the others is thorough. No folder is in both.
FAULTS: Final = (
    "tests/faults",
    "tests/scenarios/backfill",
    _ALTERATIONS,
    "tests/scenarios/test_another_shape.py",
    "tests/scenarios/test_on_the_oldest_server.py",
    "tests/scenarios/test_ranges_and_deleted_rows.py",
    "tests/target",
)
THOROUGH: Final = tuple(
    f"tests/{place}"
    for place in (
        "backfill",
        "capture",
        "definitions",
        "golden",
        "lake",
        "ledger",
        "maintenance",
        "object_store",
        "scenarios/test_scenarios.py",
        "scenarios/test_the_format.py",
        "source",
        "test_logins.py",
        "test_networks.py",
        "unit",
        "witnesses",
    )
)


# Names the program of Azure's emulator, which comes from npm: `npm install azurite`.
AZURITE: Final = "TIDEMARK_AZURITE"


def faults(checkout: Checkout) -> int:
    """SIGKILL, rivals, slots and ledgers that move, at every failpoint and from every side, and whatever else is
    thorough; then the same, and all scenarios, with their lakes in buckets; and drains, chunks, merges and scenarios by
    Google's protocol, and by Azure's where TIDEMARK_AZURITE names its emulator. The jars for these, and PostgreSQL 17,
    are fetched the first time."""
    postgres17.install(checkout)
    if AZURITE in os.environ:  # some of the first part ask it, too
        _fetch_jars(checkout, "azure", azure_jars().jars, "jars of Hadoop's client for Azure")
    here = _all(
        checkout,
        {
            "tests of faults": _pytest(checkout, "tests of faults", [*FAULTS]),
            "thorough tests": _pytest(checkout, "thorough tests", [*THOROUGH, "-m", "thorough"]),
        },
    )
    os.environ["TIDEMARK_TEST_LAKE"] = "s3"
    merges = [f"tests/target/test_{name}.py" for name in ("rivals", "merge_equals_the_model", "both_ways_in_turns")]
    # What takes files of the lake away by hand, as some remedies do, finds them on a disk.
    by_hand = ("tests/faults/test_removed_by_hand.py", "tests/faults/remedies")
    not_there = ("tests/faults/test_lake_on_s3.py", *by_hand, _ALTERATIONS)
    left_out = [f"--ignore={path}" for path in not_there]
    drains = ("capture/test_killed_drain", "capture/test_drain", "capture/test_claims", "capture/test_recovery")
    without_spark = [f"tests/{name}.py" for name in (*drains, "backfill/test_reading")]
    chosen = ["tests/scenarios", "tests/faults", *left_out, *merges, *without_spark]
    on_s3 = _all(checkout, {"faults on S3": _pytest(checkout, "faults on S3", chosen)})
    os.environ["TIDEMARK_TEST_LAKE"] = "google"
    _fetch_jars(checkout, "google", google_jars().jars, "jar of Hadoop's connector for Google Cloud Storage")
    elsewhere = [*without_spark, "tests/scenarios", f"--ignore={_ALTERATIONS}", *merges]
    on_google = _all(checkout, {"faults on Google": _pytest(checkout, "faults on Google", elsewhere)})
    if AZURITE not in os.environ:
        return max(here, on_s3, on_google)
    os.environ["TIDEMARK_TEST_LAKE"] = "azure"
    on_azure = _all(checkout, {"faults on Azure": _pytest(checkout, "faults on Azure", elsewhere)})
    return max(here, on_s3, on_google, on_azure)


def _fetch_jars(checkout: Checkout, name: str, jars: Sequence[Jar], what: str) -> None:
    if any(not (checkout.jars / jar.file).exists() for jar in jars):
        with Steps().step(what):
            command = [checkout.python, "-m", "sandbox.setup.jars", name]
            run(command, checkout.logs / f"{name}-jars.log", env=checkout.environment(os.environ))


CLUSTERS: Final = "tests/clusters"


def clusters(checkout: Checkout) -> int:
    """Merges on a standalone cluster and on YARN, whose jars are fetched the first time."""
    _fetch_jars(checkout, "yarn", yarn_jars().jars, "jars of Hadoop's MiniYARNCluster")
    return _all(checkout, {"tests of clusters": _pytest(checkout, "tests of clusters", [CLUSTERS])})


TUTORIAL: Final = "tests/test_tutorial.py"


def tutorial(checkout: Checkout) -> int:
    """docs/tutorial.md, followed to the letter in a new virtual environment: pip downloads Airflow and Spark."""
    return _all(checkout, {"the tutorial": _pytest(checkout, "the tutorial", [TUTORIAL])})


BROWSER_TESTS: Final = "tests/airflow/test_page_in_a_browser.py"


def scheduler(checkout: Checkout) -> int:
    """What Airflow itself runs, under a real scheduler and by `airflow dags test`: captures and backfills, cancelled,
    continued, refused, and killed at every failpoint."""
    chosen = [SCHEDULER, f"--ignore={BROWSER_TESTS}"]
    return _all(checkout, {"tests under a scheduler": _pytest(checkout, "tests under a scheduler", chosen)})


# Programs that the page is tried with -> the packages that bring them, by the names they have somewhere.
BROWSER: Final = {
    "chromium": ("chromium",),
    "chromedriver": ("chromium-driver", "chromedriver", "chromium-chromedriver"),
}


def page(checkout: Checkout) -> int:
    """The page in Airflow, in a real Chromium; pictures of it come to .tidemark/pictures."""
    for program, packages in BROWSER.items():
        if shutil.which(program) is None:
            manager = system_packages.manager()
            if manager is None or not manager.may_install:
                advice = "" if manager is None else f": {manager.command(packages[0])}"
                raise StepFailed(f"make page needs {program}{advice}")
            system_packages.install(manager, packages, checkout.logs / f"{program}.log", os.environ)
    axe.install(checkout)
    pictures = checkout.made / "pictures"
    pictures.mkdir(exist_ok=True)
    os.environ["TIDEMARK_SCREENSHOTS"] = str(pictures)
    return _all(checkout, {"the page in a browser": _pytest(checkout, "the page in a browser", [BROWSER_TESTS])})


def witnesses(checkout: Checkout) -> int:
    """PostgreSQL's own test suites, of the source tree that POSTGRES_SOURCE names, in a captured
    database; FILES names some of them. Played whole, they write docs/witnesses.md."""
    chosen = os.environ.get("FILES", "").split()
    return _all(checkout, {"witnesses": ["tests.witnesses", *chosen]})


def fuzz(checkout: Checkout) -> int:
    """Every decoder of what another process wrote under a fuzzer, for TIDEMARK_FUZZ_MINUTES each, 60 where nothing
    names another number; as many at once as there are cores."""
    atheris.install(checkout)
    minutes = os.environ.get("TIDEMARK_FUZZ_MINUTES") or "60"
    return _all(checkout, {"fuzz": ["tests.fuzzing", "--minutes", minutes]})


def bench(checkout: Checkout) -> int:
    """The figures of docs/performance.md, as one table and as JSON: in the scale of BENCH_SCALE, for hours in full."""
    scale = os.environ.get("BENCH_SCALE") or "full"
    return _all(checkout, {"benchmarks": ["benchmarks", "--scale", scale]})


def bench_latency(checkout: Checkout) -> int:
    """From a commit to a row in Delta, under an Airflow of its own; then the same while processes are killed."""
    folder, scale = checkout.made / "bench", os.environ.get("BENCH_SCALE") or "full"
    folder.mkdir(exist_ok=True)
    return _all(
        checkout,
        {
            module: [f"benchmarks.{module}", "--scale", scale, "--json", str(folder / f"{module}.json")]
            for module in ("latency", "killed")
        },
    )


def _lint(checkout: Checkout) -> dict[str, list[str]]:
    cache = checkout.made / "cache"
    ruff = ["--cache-dir", str(cache / "ruff"), "."]
    return {
        "format": ["ruff", "format", "--check", "--quiet", *ruff],
        "lint": ["ruff", "check", "--quiet", *ruff],
        "types": ["mypy", "--cache-dir", str(cache / "mypy")],
    }


def _all(checkout: Checkout, commands: dict[str, list[str]]) -> int:
    """Run every command, though an earlier one failed; the worst code is the answer."""
    results: list[tuple[str, int, float]] = []
    for title, command in commands.items():
        print(f"— {title}: {_short(command)}", flush=True)
        started = time.monotonic()
        code = waited_for(_command(checkout, command), cwd=checkout.root, env=checkout.environment(os.environ))
        results.append((title, code, time.monotonic() - started))
    return _verdict(results)


def side_by_side(checkout: Checkout, commands: dict[str, list[str]]) -> int:
    """Run all commands at the same time: the first is seen at work, the output of each other one when it has ended."""
    started = time.monotonic()
    logs = {title: scratch(checkout) / f"{title.replace(' ', '-')}.log" for title in list(commands)[1:]}
    running: dict[str, subprocess.Popen[bytes]] = {}
    results = []
    try:
        for title, command in commands.items():
            print(f"— {title}: {_short(command)}", flush=True)
            with logs[title].open("wb") if title in logs else nullcontext() as log:
                running[title] = subprocess.Popen(
                    _command(checkout, command),
                    cwd=checkout.root,
                    env=checkout.environment(os.environ),
                    stdout=log,
                    stderr=None if log is None else subprocess.STDOUT,
                )
        for title, process in running.items():
            code = process.wait()
            results.append((title, code, time.monotonic() - started))
            if title in logs:
                print(f"\n— {title}:\n{logs[title].read_text(errors='replace')}", flush=True)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
    return _verdict(results)


def _command(checkout: Checkout, command: list[str]) -> list[str]:
    return [str(checkout.python), *([] if command[0].endswith(".py") else ["-m"]), *command]


def _short(command: list[str]) -> str:
    return " ".join(word if word.startswith("-") else Path(word).name for word in command[:6])


def _verdict(results: list[tuple[str, int, float]]) -> int:
    print()
    for title, code, seconds in results:
        print(f"  {title:<24}{'passed' if code == 0 else f'FAILED ({code})':<12}{seconds:>8.1f} s")
    return max((abs(code) for _, code, _ in results), default=0)
