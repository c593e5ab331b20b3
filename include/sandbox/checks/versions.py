"""Runs the wheels in each supported Airflow, and merges on each Spark and Delta, one after the other: `make versions`.

Each environment lies in .tidemark/versions/<airflow>, is made as Airflow's documentation says (Airflow with the
constraints of its release day, then the wheels by pip, which must exchange nothing of Airflow), and is removed after
its tests. KEEP=1 keeps it, ONLY="3.1.8 spark-4.0.5-delta-4.4.0" plays these alone. The results go to docs/versions.md;
a version that was not played keeps its row.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sandbox.checkout import Checkout
from sandbox.checks import spark_versions
from sandbox.checks.suites import scratch
from sandbox.release.distributions import build
from sandbox.setup.uv_settings import uv_environment
from sandbox.steps import StepFailed, Steps, run, waited_for


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the matrix. `released`: Airflow makes the constraints of a release of what an index had by that day."""

    airflow: str
    python: str
    released: str


MATRIX: Final = (
    Row("3.1.8", "3.11", "2026-03-20"),
    Row("3.2.2", "3.12", "2026-06-01"),
    Row("3.3.2", "3.13", "2026-09-25"),
)
TESTS: Final = ("tests/airflow/test_every_airflow.py", "tests/airflow/test_end_to_end.py")
NOTED: Final = ("apache-airflow-providers-apache-spark", "apache-airflow-providers-postgres", "pyspark", "delta-spark")
BEGIN, END = "<!-- begin: written by make versions -->", "<!-- end -->"
BEGIN_SPARK: Final = "<!-- begin: Spark and Delta, written by make versions -->"
HEAD: Final = "| Airflow | Python | Spark provider | Postgres provider | PySpark | Delta | day | result |"


def versions(checkout: Checkout) -> int:
    only = os.environ.get("ONLY", "").split()
    names = [*(row.airflow for row in MATRIX), *(row.name for row in spark_versions.MATRIX)]
    if unknown := set(only) - {*names}:
        raise StepFailed(f"ONLY names {', '.join(sorted(unknown))}; the matrix has {', '.join(names)}")
    steps = Steps()
    return max(_of_airflow(checkout, steps, only or names), _of_spark(checkout, steps, only or names))


def _of_spark(checkout: Checkout, steps: Steps, chosen: Collection[str]) -> int:
    worst = 0
    for row in spark_versions.MATRIX:
        if row.name not in chosen:
            continue
        folder, started = checkout.made / "versions" / row.name, time.monotonic()
        try:
            code = spark_versions.play(checkout, steps, row, folder)
        finally:
            if not os.environ.get("KEEP"):
                shutil.rmtree(folder, ignore_errors=True)
        worst = max(worst, abs(code))
        cells = [row.spark, row.delta, row.written_by, f"{datetime.now(UTC):%Y-%m-%d}", _result(code, started)]
        order = [(one.spark, one.delta) for one in spark_versions.MATRIX]
        _note(checkout, Table(BEGIN_SPARK, spark_versions.HEAD, order), cells)
    return worst


def _of_airflow(checkout: Checkout, steps: Steps, chosen: Collection[str]) -> int:
    rows = [row for row in MATRIX if row.airflow in chosen]
    if not rows:
        return 0
    with steps.step("sdists and wheels"):
        wheels = [file for file in build(checkout, checkout.made / "versions" / "dist") if file.suffix == ".whl"]
    worst = 0
    for row in rows:
        environment = checkout.made / "versions" / row.airflow
        try:
            installed = _make(checkout, steps, row, environment, wheels)
            started = time.monotonic()
            code = _play(checkout, row, environment)
        finally:
            if not os.environ.get("KEEP"):
                shutil.rmtree(environment, ignore_errors=True)
        worst = max(worst, abs(code))
        cells = [row.airflow, *installed, f"{datetime.now(UTC):%Y-%m-%d}", _result(code, started)]
        _note(checkout, Table(BEGIN, HEAD, [(one.airflow,) for one in MATRIX]), cells)
    return worst


def _result(code: int, started: float) -> str:
    return f"passed in {(time.monotonic() - started) / 60:.0f} min" if code == 0 else f"**failed** ({code})"


def _make(checkout: Checkout, steps: Steps, row: Row, environment: Path, wheels: list[Path]) -> list[str]:
    """Airflow by uv with constraints, the wheels by pip. Returns the versions that docs/versions.md names."""
    cache = os.environ.get("UV_CACHE_DIR") or str(checkout.made / "cache" / "uv")
    # A python3.12 of pyenv starts only where PYENV_VERSION names it.
    of_python = {"UV_PYTHON_DOWNLOADS": "never", "PYENV_VERSION": row.python}
    env = {**uv_environment(checkout.python), "UV_CACHE_DIR": cache, **of_python}
    env.pop("PYTHONPATH", None)
    uv, log = checkout.venv / "bin" / "uv", checkout.logs / f"versions-{row.airflow}.log"
    python = environment / "bin" / "python"
    with steps.step(f"Airflow {row.airflow} on Python {row.python}"):
        shutil.rmtree(environment, ignore_errors=True)
        run([uv, "venv", "--python", row.python, environment], log, env=env)
        wanted, constraints = environment / "wanted.txt", environment / "constraints.txt"
        providers = [f"apache-airflow-providers-{name}" for name in ("apache-spark", "postgres", "standard")]
        wanted.write_text("\n".join([f"apache-airflow=={row.airflow}", *providers]))
        compiling = [uv, "pip", "compile", "--python", python, "--exclude-newer", row.released]
        run([*compiling, wanted, "-o", constraints], log, env=env)
        run([uv, "pip", "install", "--python", python, "-r", constraints], log, env=env)
    before = _packages(uv, python, env)
    with steps.step("the wheels, by pip"):
        pip = [checkout.python, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        run([*pip, "install", *wheels], log, env=os.environ)
    after = _packages(uv, python, env)
    exchanged = [name for name, version in before.items() if after.get(name) != version]
    if any(name.startswith("apache-airflow") for name in exchanged):
        raise StepFailed(f"Installing the wheels exchanged {', '.join(exchanged)}")
    # PySpark and the Spark provider's pyspark-client own the same files, so both are of one version.
    with steps.step("PySpark and Delta"):
        lines = (checkout.root / "requirements.in").read_text().split()
        wanted_too = ("pyspark==", "delta-spark==", *(["pyspark-client=="] if "pyspark-client" in after else []))
        pinned = [line for line in lines if line.startswith(wanted_too)]
        run([uv, "pip", "install", "--python", python, *pinned], log, env=env)
    packages = _packages(uv, python, env)
    found = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return [found, *(packages[name] for name in NOTED)]


def _packages(uv: Path, python: Path, env: dict[str, str]) -> dict[str, str]:
    command = [str(uv), "pip", "list", "--quiet", "--python", str(python), "--format", "json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return {package["name"]: package["version"] for package in json.loads(listed)}


def _play(checkout: Checkout, row: Row, environment: Path) -> int:
    env = {**checkout.environment(os.environ), "TIDEMARK_INSTALLED": str(environment / "bin" / "python")}
    print(f"— Airflow {row.airflow}: {' '.join(TESTS)}", flush=True)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "thorough or not thorough"]
    temporary = scratch(checkout) / f"versions-{row.airflow}"
    command = [str(checkout.python), "-m", "pytest", *TESTS, *options, f"--basetemp={temporary}"]
    return waited_for(command, cwd=checkout.root, env=env)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of docs/versions.md: what stands before it, its head, and its lines' first cells in their order."""

    begin: str
    head: str
    order: Sequence[tuple[str, ...]]


def _note(checkout: Checkout, table: Table, cells: list[str]) -> None:
    """Write the version's row of docs/versions.md."""
    page = checkout.root / "docs" / "versions.md"
    page.write_text(with_row(page.read_text(), table, cells))


def with_row(text: str, table: Table, cells: list[str]) -> str:
    """The page with the row, in place of one that begins with the same cells."""
    before, _, rest = text.partition(table.begin)
    written, _, after = rest.partition(END)
    first = len(table.order[0])
    rows = {tuple(listed[:first]): listed for line in written.splitlines() if (listed := cells_of(line, table.head))}
    rows[tuple(cells[:first])] = cells
    lines = [table.head, "|---" * (table.head.count("|") - 1) + "|"]
    lines += [f"| {' | '.join(rows[key])} |" for key in table.order if key in rows]
    return f"{before}{table.begin}\n" + "\n".join(lines) + f"\n{END}{after}"


def cells_of(line: str, head: str) -> list[str]:
    """None of a line that is no row."""
    return [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("| ") and line != head else []
