"""What a driver says while a table fails: places, classes and conditions, and no value of a row.

The driver runs with Spark's own settings, as on a machine where nobody has configured anything: there the level is
INFO, and each failure of a task is logged with its text.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.setup.log_store import JAR
from spark_apps import merge_batch
from tests.support import local_spark
from tests.target.lake import PIPELINE, TEXTS, Lake, table_schema
from tests.target.test_values import insert
from tidemark.formats.merge_result import PlanResult

SECRET = "hunter2"


# What somebody added to a Delta table -> the condition under which Spark then refuses a row, quoting it.
CONSTRAINTS = {
    f"body <> '{SECRET}'": "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    "n = 1 OR CAST(body AS INT) > 0": "CAST_INVALID_INPUT",
}


@pytest.mark.thorough
def test_a_driver_tells_of_a_refused_row_where_and_why_but_not_what_it_held(lake: Lake, tmp_path: Path) -> None:
    tables = []
    for number, constraint in enumerate(CONSTRAINTS):
        table = lake.table(table_schema(f"broken{number}", TEXTS))
        table.stage([insert(1, n=1, body="ok")])
        lake.applied(table.planned())
        current = lake.path("current", table)
        lake.spark.sql(f"ALTER TABLE delta.`{current}` ADD CONSTRAINT never CHECK ({constraint})")
        table.stage([insert(2, n=2, body=SECRET)])
        tables.append(table)
    plan = lake.plan(*(table.planned() for table in tables))
    folder = lake.root / PIPELINE / "plans" / plan.plan
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan.to_json())
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(
        f"spark.master local[1]\nspark.jars {local_spark.jars()},{JAR}\nspark.driver.host 127.0.0.1\n"
        f"spark.sql.warehouse.dir {tmp_path}/warehouse\n"
        "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
    )
    process = subprocess.run(
        [sys.executable, merge_batch.__file__, "--manifest", f"file://{folder}/plan.json"],
        env={**os.environ, "SPARK_CONF_DIR": str(settings)},
        capture_output=True,
        text=True,
    )
    output = process.stdout + process.stderr
    assert process.returncode == 0, output[-3000:]
    text = (folder / "result.json").read_text()
    errors = [table.error or {} for table in PlanResult.from_json(text).tables]
    assert [error.kind for error in errors] == ["MergeFailed", "MergeFailed"]
    assert all(condition in error.message for error, condition in zip(errors, CONSTRAINTS.values(), strict=True))
    assert SECRET not in text
    assert SECRET not in output
    for condition in CONSTRAINTS.values():
        assert condition in output, "an operator has something to look up"
    assert "  org.apache.spark.sql.delta.schema.DeltaInvariantViolationException\n    at org.apache.spark" in output
    assert "INFO" not in output.replace(" INFO public.", ""), "Spark's own level is INFO, whose plans have literals"
