"""Implements the engine with Spark: rows are DataFrames of the version that was opened, and are read when used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidemark.lake.delta_schemas import columns_of
from tidemark.lake.dialects import Dialect
from tidemark.lake.engine import OpenedTable
from tidemark.names import spark_identifier
from tidemark.target.delta import delta_tables


class SparkEngine:
    """Reads Delta tables in the caller's own session, and leaves nothing in it."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.dialect = Dialect()

    def open(self, path: str) -> OpenedTable | None:
        pinned = delta_tables.pin(self.spark, path)
        if not pinned.exists:
            return None
        return OpenedTable(path, pinned.version, columns_of(pinned.state.schema), pinned)

    def transaction(self, table: OpenedTable, application: str) -> int | None:
        position = table.handle.position(application)
        return None if position is None else int(position)

    def rows(self, table: OpenedTable) -> DataFrame:
        return delta_tables.rows(table.handle)

    def frame(self, statement: str, tables: Mapping[str, OpenedTable]) -> DataFrame:
        """`tables` were opened by this engine. While the statement is planned, each name is a temporary view of the
        session. Threads that share an engine must use different names."""
        for name, table in tables.items():
            self.rows(table).createTempView(name)
        try:
            return self.spark.sql(statement)  # names are looked up here, not when rows are read
        finally:
            for name in tables:
                self.spark.catalog.dropTempView(name)

    def listed(self, statement: str, tables: Mapping[str, OpenedTable]) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.frame(statement, tables).collect()]

    def register(self, schema: str, name: str, path: str) -> str:
        """Register a Delta table in the session's catalogue where it lies; returns its name there."""
        full = self._in_schema(schema, name)
        located = self.dialect.text(path)
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS {full} USING DELTA LOCATION {located}")
        return full

    def create_view(self, schema: str, name: str, statement: str) -> str:
        """Create a view in the session's catalogue; returns its name."""
        full = self._in_schema(schema, name)
        self.spark.sql(f"CREATE OR REPLACE VIEW {full} AS {statement}")
        return full

    def _in_schema(self, schema: str, name: str) -> str:
        """A name in the schema. `schema` may include a catalogue: main.shop."""
        quoted = ".".join(spark_identifier(part) for part in schema.split("."))
        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
        return f"{quoted}.{spark_identifier(name)}"
