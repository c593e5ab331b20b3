"""Names in a metastore of Hive, by drivers of their own, read by another application that knows nothing but names.

Derby, which Spark brings along, is the metastore's database here: one process at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.setup.log_store import JAR
from spark_apps import merge_batch
from tests.support import judge, local_spark
from tests.support.capture import Environment
from tidemark.config import TableRule

pytestmark = pytest.mark.thorough

# As Airflow's hook starts a driver; what it is given wins over Tidemark's own settings.
SUBMIT = Path(sys.executable).parent / "spark-submit"

# Another application: it asks for tables by their names, and is no part of Tidemark.
READER = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
told = {}
for name in sorted(row.tableName for row in spark.sql("SHOW TABLES IN shop_lake").collect()):
    table = spark.table(f"shop_lake.{name}")
    described = spark.sql(f"DESCRIBE TABLE EXTENDED shop_lake.{name}").collect()
    told[name] = {
        "rows": sorted([str(row[c]) for c in table.columns if not c.startswith("_")] for row in table.collect()),
        "comments": {row.col_name: row.comment for row in described if row.col_name in table.columns and row.comment},
        "comment": next((row.data_type for row in described if row.col_name == "Comment"), None),
    }
print("TOLD " + json.dumps(told))
"""


class Hive:
    """The metastore, and processes that use it."""

    def __init__(self, folder: Path) -> None:
        self._settings = folder / "conf"
        self._settings.mkdir(parents=True)
        (self._settings / "spark-defaults.conf").write_text(
            "spark.master local[1]\n"
            f"spark.jars {local_spark.jars()},{JAR}\n"
            "spark.driver.host 127.0.0.1\n"
            "spark.ui.enabled false\n"
            "spark.sql.catalogImplementation hive\n"
            "spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension\n"
            "spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog\n"
            "spark.tidemark.catalogue shop_lake\n"
            f"spark.sql.warehouse.dir {folder}/warehouse\n"
            "spark.hadoop.javax.jdo.option.ConnectionURL "
            f"jdbc:derby:;databaseName={folder}/metastore;create=true\n"
            f"spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -Dderby.stream.error.file={folder}/derby.log\n"
            "spark.sql.codegen.wholeStage false\n"
            "spark.sql.codegen.factoryMode NO_CODEGEN\n"
            "spark.sql.shuffle.partitions 1\n"
            "spark.databricks.delta.snapshotPartitions 1\n"
        )

    def run(self, *program: str) -> str:
        process = subprocess.run(
            program,
            env={**os.environ, "SPARK_CONF_DIR": str(self._settings), "PYSPARK_PYTHON": sys.executable},
            cwd=self._settings,
            capture_output=True,
            text=True,
        )
        output = process.stdout + process.stderr
        assert process.returncode == 0, output[-3000:]
        return output

    def merge(self, uri: str) -> None:
        output = self.run(str(SUBMIT), merge_batch.__file__, "--manifest", uri)
        assert "not in the catalogue" not in output, output[-3000:]

    def told(self) -> dict[str, Any]:
        output = self.run(sys.executable, "-c", READER)
        (line,) = [line for line in output.splitlines() if line.startswith("TOLD ")]
        tables: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
        return tables


@pytest.fixture
def hive(tmp_path: Path) -> Hive:
    return Hive(tmp_path / "hive")


@pytest.fixture
def shop(new_environment: Callable[..., Environment], hive: Hive, monkeypatch: pytest.MonkeyPatch) -> Environment:
    environment = new_environment("registered", (TableRule("shop.*"),))
    monkeypatch.setattr(environment, "_apply", hive.merge)
    return environment


def test_tables_of_a_hive_metastore_are_read_by_the_names_that_the_source_has(shop: Environment, hive: Hive) -> None:
    shop.execute("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)")
    shop.execute("COMMENT ON TABLE shop.orders IS 'What was ordered'")
    shop.run()
    shop.execute("INSERT INTO shop.orders VALUES (1, 'first'), (2, 'second')")
    shop.run()
    shop.execute("ALTER TABLE shop.orders RENAME note TO remark", "ALTER TABLE shop.orders ADD size int DEFAULT 7")
    shop.execute("COMMENT ON COLUMN shop.orders.remark IS 'In the customer''s words'")
    shop.execute("INSERT INTO shop.orders VALUES (3, 'third', 3)")
    shop.run()
    told = hive.told()
    assert set(told) == {"orders", "orders__history", "tidemark_positions"}
    assert told["orders"]["rows"] == [["1", "first", "7"], ["2", "second", "7"], ["3", "third", "3"]]
    assert told["orders"]["comment"] == told["orders__history"]["comment"] == "What was ordered"
    assert told["orders"]["comments"]["remark"] == "In the customer's words"

    shop.execute("ALTER TABLE shop.orders RENAME TO old_orders", "DELETE FROM shop.old_orders WHERE id = 1")
    shop.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, other int)")
    shop.run()
    shop.execute("INSERT INTO shop.orders VALUES (9, 90)")
    shop.run()
    told = hive.told()
    assert told["orders"]["rows"] == told["orders__history"]["rows"] == [["9", "90"]]
    assert told["old_orders"]["rows"] == [["2", "second", "7"], ["3", "third", "3"]]
    assert judge.wrongs(shop) == []
