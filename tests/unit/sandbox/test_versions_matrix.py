"""CI and the page of versions name the same versions as `make versions`."""

from __future__ import annotations

from pathlib import Path

import yaml

from sandbox.checks import spark_versions
from sandbox.checks.versions import BEGIN, BEGIN_SPARK, END, HEAD, MATRIX, Table, cells_of, with_row

REPOSITORY = Path(__file__).resolve().parents[3]


def test_ci_plays_every_line_of_the_matrix() -> None:
    jobs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "nightly.yaml").read_text())["jobs"]
    lines = jobs["versions"]["strategy"]["matrix"]["include"]
    assert lines == [{"airflow": row.airflow, "python": row.python} for row in MATRIX]
    assert jobs["sparks"]["strategy"]["matrix"]["pair"] == [row.name for row in spark_versions.MATRIX]


def test_the_page_has_results_of_versions_of_the_matrix_alone() -> None:
    page = (REPOSITORY / "docs" / "versions.md").read_text()
    table = page.partition(BEGIN)[2].partition(END)[0]
    rows = [cells[0] for line in table.splitlines() if (cells := cells_of(line, HEAD))]
    assert rows == [row.airflow for row in MATRIX if row.airflow in rows]
    table = page.partition(BEGIN_SPARK)[2].partition(END)[0]
    pairs = [(cells[0], cells[1]) for line in table.splitlines() if (cells := cells_of(line, spark_versions.HEAD))]
    assert pairs == [pair for row in spark_versions.MATRIX if (pair := (row.spark, row.delta)) in pairs]


def test_a_row_takes_the_place_of_its_older_one_and_leaves_all_else() -> None:
    table = Table("<!-- b -->", "| a | b | result |", [("1", "x"), ("2", "x"), ("2", "y")])
    text = f"before\n{table.begin}\nnothing\n{END}\nafter\n"
    for cells in (["2", "y", "old"], ["1", "x", "one"], ["2", "y", "new"]):
        text = with_row(text, table, cells)
    rows = "| a | b | result |\n|---|---|---|\n| 1 | x | one |\n| 2 | y | new |"
    assert text == f"before\n{table.begin}\n{rows}\n{END}\nafter\n"
