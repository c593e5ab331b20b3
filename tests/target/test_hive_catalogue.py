"""Names in a Hive metastore: drivers of their own give them, and two applications that know nothing but names read.

The metastore is Hive's own server, from the jars that Spark brings along, with Derby as its database. One reader is
Spark. The other is delta-rs, with a Thrift client that asks the metastore where a table is.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sandbox.services.postgres import free_port, wait_for
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


# The same without Spark. Spark writes a table's place where it writes all of its own settings.
OTHER_READER = """
import json, sys
from deltalake import DeltaTable, QueryBuilder
from pymetastore.metastore import HMS
told = {}
with HMS.create("127.0.0.1", int(sys.argv[1])) as metastore:
    for name in sorted(metastore.list_tables("shop_lake")):
        table = metastore.get_table("shop_lake", name)
        assert table.table_type == "EXTERNAL_TABLE", table.table_type
        delta = DeltaTable(table.storage.serde_parameters["path"])
        names = [field.name for field in delta.schema().fields if not field.name.startswith("_")]
        read = QueryBuilder().register("read", delta).execute(f"SELECT {', '.join(names)} FROM read").read_all()
        columns = [column.to_pylist() for column in read.columns]
        told[name] = sorted([str(value) for value in row] for row in zip(*columns))
print("TOLD " + json.dumps(told))
"""
OTHER_READERS_PACKAGES = ("pymetastore==0.4.2", "deltalake==1.6.6")


class Metastore:
    """Hive's server, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port, self._log = free_port(), folder / "metastore.log"
        properties = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/database;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": str(folder / "warehouse"),
            "hive.async.log.enabled": "false",  # its logger wants a jar that Spark leaves out
        }
        listed = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in properties.items())
        (folder / "hive-site.xml").write_text(f"<configuration>{listed}</configuration>")
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        classes = f"{folder}{os.pathsep}{Path(pyspark.__file__).parent / 'jars'}/*"
        server = "org.apache.hadoop.hive.metastore.HiveMetaStore"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [java, "-XX:TieredStopAtLevel=1", "-cp", classes, server, "-p", str(self.port)],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_it_listens(self) -> None:
        def listens() -> bool:
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for("the metastore listens", listens, 300)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Hive:
    """Processes that use the metastore."""

    def __init__(self, folder: Path, metastore: Metastore, other_python: Path) -> None:
        self._metastore, self._other_python = metastore, other_python
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
            f"spark.hadoop.hive.metastore.uris thrift://127.0.0.1:{metastore.port}\n"
            "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1\n"
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
        return told(self.run(sys.executable, "-c", READER))

    def told_without_spark(self) -> dict[str, Any]:
        return told(self.run(str(self._other_python), "-c", OTHER_READER, str(self._metastore.port)))


def told(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("TOLD ")]
    tables: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
    return tables


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has delta-rs and the client of the metastore."""
    folder = tmp_path_factory.mktemp("reader")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *OTHER_READERS_PACKAGES], check=True)
    return python


@pytest.fixture
def hive(tmp_path: Path, other_python: Path) -> Iterator[Hive]:
    metastore = Metastore(tmp_path / "metastore")
    try:
        metastore.wait_until_it_listens()
        yield Hive(tmp_path / "hive", metastore, other_python)
    finally:
        metastore.stop()


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
    assert hive.told_without_spark()["orders"] == told["orders"]["rows"]

    shop.execute("ALTER TABLE shop.orders RENAME TO old_orders", "DELETE FROM shop.old_orders WHERE id = 1")
    shop.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, other int)")
    shop.run()
    shop.execute("INSERT INTO shop.orders VALUES (9, 90)")
    shop.run()
    told = hive.told()
    assert told["orders"]["rows"] == told["orders__history"]["rows"] == [["9", "90"]]
    assert told["old_orders"]["rows"] == [["2", "second", "7"], ["3", "third", "3"]]
    others = hive.told_without_spark()
    assert {name: others[name] for name in ("orders", "old_orders")} == {
        name: told[name]["rows"] for name in ("orders", "old_orders")
    }
    assert judge.wrongs(shop) == []
