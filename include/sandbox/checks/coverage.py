"""Measures which lines of the library and of the plugins the tests of `make test` run: `make coverage`.

The processes that the tests start are measured, too: drains, drivers, Airflow's tasks. What a SIGKILL ends is not.
"""

from __future__ import annotations

import os
import shutil

from sandbox.checkout import Checkout
from sandbox.checks.suites import side_by_side, whole
from sandbox.steps import run


def coverage(checkout: Checkout) -> int:
    """.tidemark/coverage gets report.md, least covered module first, and html/index.html, with the lines.

    Returns the exit code of the tests: the report is made of what ran, though some failed.
    """
    folder = checkout.made / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["COVERAGE_FILE"] = str(folder / "data")
    measured = {title: ["coverage", "run", "-m", *tests] for title, tests in whole(checkout).items()}
    code = side_by_side(checkout, measured)
    log, env = checkout.logs / "coverage.log", checkout.environment(os.environ)
    command = [checkout.python, "-m", "coverage"]
    run([*command, "combine", "--quiet"], log, env=env, cwd=checkout.root)
    run([*command, "html", "--quiet", "--directory", folder / "html"], log, env=env, cwd=checkout.root)
    report = folder / "report.md"
    run([*command, "report", "--format=markdown", "--sort=cover"], report, env=env, cwd=checkout.root)
    lines = report.read_text().splitlines()
    print("\n".join([*lines[:12], *lines[-1:]]))
    print(f"All of it: {report} and {folder / 'html' / 'index.html'}")
    return code
