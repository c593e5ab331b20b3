"""docs/reading-the-tables.md, followed literally: DuckDB, Polars and delta-rs read what Spark reads.

The readers come from the package index, in the versions that the page names, into an environment of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.target.lake import Lake, StagedTable, both_ways, table_schema
from tests.target.model import Change
from tests.unit.test_architecture import REPOSITORY

pytestmark = pytest.mark.thorough

PAGE = (REPOSITORY / "docs" / "reading-the-tables.md").read_text()
TIME_TRAVEL = (REPOSITORY / "docs" / "time-travel.md").read_text()
READERS = (
    "duckdb==1.5.5",
    "duckdb_extension_delta==1.5.5",
    "duckdb_extensions",
    "pytz",
    "polars==2.1.0",
    "deltalake==1.6.6",
    "pyarrow",
    "numpy",
    "msgspec",  # of the library itself
)
COLUMNS = {
    "id": "bigint",
    "status": "string",
    "total": "decimal(10,2)",
    "placed": "timestamp",
    "stamped": "timestamp_ntz",
    "due": "date",
}
# Whatever a reader gives, as the same text.
DUMP = """
import json
def dumped(rows):
    print(json.dumps(sorted([['NULL' if v is None else str(v).replace("+00:00", "") for v in row] for row in rows])))
"""
ALL_ROWS = {
    "DuckDB": "import duckdb\nduckdb.sql(\"SET timezone = 'UTC'\")\n"
    "dumped(duckdb.sql(f\"SELECT {columns} FROM delta_scan('{path}')\").fetchall())",
    "Polars": "import polars\ndumped(polars.scan_delta(path).select(columns.split(', ')).collect().rows())",
    "delta-rs": "from deltalake import DeltaTable, QueryBuilder\nimport pyarrow\n"
    "t = QueryBuilder().register('t', DeltaTable(path)).execute(f'SELECT {columns} FROM t').read_all()\n"
    "dumped([list(row.values()) for row in pyarrow.table(t).to_pylist()])",
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the readers."""
    folder = tmp_path_factory.mktemp("readers")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *READERS], check=True)
    return python


def said(python: Path, program: str, **constants: str) -> Any:
    """What a program of the readers' environment prints as its last line, in JSON."""
    settings = "".join(f"{name} = {value!r}\n" for name, value in constants.items())
    # The extension comes as a package: whoever reads the page has a network that it loads itself over.
    extension = "import duckdb_extensions\nduckdb_extensions.import_extension('delta')\n" if "duckdb" in program else ""
    done = subprocess.run(
        [python, "-c", settings + extension + program],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(python.parent), "PYTHONPATH": f"{REPOSITORY / 'include'}:{REPOSITORY}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def order(key: int, status: str, total: str = "12.50") -> dict[str, Any]:
    return {
        "id": key,
        "status": status,
        "total": Decimal(total),
        "placed": datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC),
        "stamped": datetime(1969, 12, 31, 23, 59, 59, 999999),
        "due": date(1582, 10, 15),
    }


@pytest.fixture
def orders(lake: Lake) -> StagedTable:
    """Rows that were taken over from staging, masked by deletion vectors, moved to another key, deleted and back."""
    table = lake.table(table_schema("orders", COLUMNS, schema="shop"))
    table.stage([Change("insert", order(n, "new")) for n in range(50)])
    lake.applied(table.planned())
    nothing: dict[str, Any] = dict.fromkeys(COLUMNS)
    table.stage(
        [Change("update", order(n, "paid", "-0.01")) for n in range(10)],
        [Change("update", order(100, "moved"), old_key={"id": 10})],
        [Change("delete", {**nothing, "id": n}) for n in range(11, 21)],
    )
    lake.applied(table.planned(1))
    table.stage([Change("insert", order(11, "again")), Change("update", {**nothing, "id": 0})])
    lake.applied(table.planned(2))
    return table


def snippet(label: str, page: str = PAGE) -> str:
    match = re.search(rf'^=== "{label}"\n\n    ```python\n(.*?)    ```', page, re.DOTALL | re.MULTILINE)
    assert match is not None, label
    return textwrap.dedent(match[1])


@both_ways
def test_every_reader_of_the_page_reads_what_spark_reads(
    lake: Lake, orders: StagedTable, readers: Path, spark: SparkSession
) -> None:
    spoken: dict[str, Any] = {"spark": spark, "lake": str(lake.root)}
    exec(snippet("Spark"), spoken)
    assert spoken["rows"] == 41
    for step in ("current", "history"):
        names = [*COLUMNS, "_commit_lsn"] + (["_op"] if step == "history" else [])
        expected = sorted(
            ["NULL" if v is None else str(v) for v in row]
            for row in lake.read(step, orders).selectExpr(*[f"CAST({name} AS STRING)" for name in names]).collect()
        )
        for label, program in ALL_ROWS.items():
            rows = said(readers, DUMP + program, path=lake.path(step, orders), columns=", ".join(names))
            assert [_timed(row) for row in rows] == [_timed(row) for row in expected], (label, step)
    for label in ALL_ROWS:
        assert said(readers, snippet(label) + "\nprint(rows)", lake=str(lake.root)) == 41, label


ODD = [
    *(("Legacy CRM", "Order Items"), ("shop", "a=b"), ("shop", "50%"), ("größe", "日本"), ("s", "x~2")),
    *(("s", "_delta_log"), ("s", "{a}[b]*?"), ("s", "#a?b:c"), ("s", "it's $HOME `x`")),
]


def test_every_reader_finds_tables_of_odd_names(lake: Lake, readers: Path, spark: SparkSession) -> None:
    tables = [lake.table(table_schema(name, {"id": "int"}, schema=schema)) for schema, name in ODD]
    for table in tables:
        table.stage([Change("insert", {"id": n}) for n in range(3)])
    lake.applied(*[table.planned() for table in tables])
    counted = "import json\nfrom tidemark.lake import Lake\nprint(json.dumps(Lake(root).table(name).rows().num_rows))"
    for table in tables:
        path, name = lake.path("current", table), str(table.schema.table)
        assert spark.read.format("delta").load(path).count() == 3
        for label, program in ALL_ROWS.items():
            assert len(said(readers, DUMP + program, path=path, columns="id")) == 3, (label, name)
        assert said(readers, counted, root=path.partition("/current/")[0], name=name) == 3


def _timed(row: list[str]) -> list[str]:
    """Without the zeros at the end of a time's fraction, which some print."""
    return [re.sub(r"(:\d\d\.\d*?)0+$", r"\1", v).rstrip(".") for v in row]


def test_the_rows_of_a_moment_come_from_history_alone(lake: Lake, orders: StagedTable, readers: Path) -> None:
    match = re.search(r"```sql\n(WITH upto.*?)```", PAGE, re.DOTALL)
    assert match is not None
    query = match[1].replace("TIMESTAMPTZ '2026-11-17 00:00:00+00'", "TIMESTAMPTZ '{moment}+00'")
    assert "{moment}" in query
    program = DUMP + (
        "import duckdb\nduckdb.sql(f\"CREATE VIEW history AS SELECT * FROM delta_scan('{path}')\")\n"
        f"dumped(duckdb.sql(f'''SELECT id, status FROM ({query})''').fetchall())"
    )
    commits = sorted({row["_committed_at"] for row in lake.stored("history", orders)})
    path = lake.path("history", orders)
    first = said(readers, program, path=path, moment=commits[0].strftime("%Y-%m-%d %H:%M:%S"))
    assert first == sorted([str(n), "new"] for n in range(50))
    last = said(readers, program, path=path, moment="2300-01-01 00:00:00")
    assert last == sorted([str(row["id"]), row["status"] or "NULL"] for row in lake.current(orders))


def test_pyarrow_through_delta_rs_refuses_rather_than_misreads(lake: Lake, orders: StagedTable, readers: Path) -> None:
    program = (
        "import json\nfrom deltalake import DeltaTable\n\n"
        "try:\n    DeltaTable(path).to_pyarrow_table()\n"
        "except Exception as refused:\n    print(json.dumps(str(refused)))"
    )
    assert "deletionVectors" in said(readers, program, path=lake.path("current", orders))


def test_delta_rs_tells_any_moment_of_what_spark_merged(lake: Lake, orders: StagedTable, readers: Path) -> None:
    """The page's snippet, at the end of each batch: rows that were moved, deleted, and masked in their files."""
    for batch, count in zip(orders.batches, (50, 40, 41), strict=True):
        program = snippet("delta-rs", TIME_TRAVEL).replace("0/16B3748", str(batch.end_lsn))
        printed = "\nimport json\nprint(json.dumps([now.num_rows, was.num_rows, then.is_exact, str(then.position)]))"
        expected = [41, count, False, f"{batch.end_lsn} of generation 1"]
        assert said(readers, program + printed, lake=str(lake.root)) == expected


def test_delta_rs_knows_defaults_unknown_values_and_what_merges_noted(readers: Path, tmp_path: Path) -> None:
    program = "from tests.lake.against_delta_rs import columns_and_positions\nimport json\n"
    printed = "print(json.dumps(columns_and_positions(folder)))"
    assert said(readers, program + printed, folder=str(tmp_path)) == "so it is"


def test_delta_rs_tells_any_moment_of_random_histories(readers: Path, tmp_path: Path) -> None:
    told = said(readers, "from tests.lake.against_delta_rs import play\nprint(play(folder, 40))", folder=str(tmp_path))
    assert told > 150, "too few moments were asked for"
