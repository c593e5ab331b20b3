"""CI and the page of versions name the same versions of Airflow as `make versions`."""

from __future__ import annotations

from pathlib import Path

import yaml

from sandbox.checks.versions import BEGIN, END, HEAD, MATRIX

REPOSITORY = Path(__file__).resolve().parents[3]


def test_ci_plays_every_line_of_the_matrix() -> None:
    jobs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "nightly.yaml").read_text())["jobs"]
    lines = jobs["versions"]["strategy"]["matrix"]["include"]
    assert lines == [{"airflow": row.airflow, "python": row.python} for row in MATRIX]


def test_the_page_has_results_of_versions_of_the_matrix_alone() -> None:
    page = (REPOSITORY / "docs" / "versions.md").read_text()
    table = page.partition(BEGIN)[2].partition(END)[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ") and line != HEAD]
    assert rows == [row.airflow for row in MATRIX if row.airflow in rows]
