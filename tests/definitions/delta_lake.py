"""Merges plans by the application, into Delta tables, in the place of the lists of rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from spark_apps import merge_batch
from tests.definitions.list_of_rows import Lake, Target
from tests.support import delta_files, stages
from tests.support.pipeline import SALT, Pipeline
from tidemark.formats import layout
from tidemark.names import TableName


class DeltaLake(Lake):
    """All Delta tables of a pipeline. `merged` counts the tables of all plans."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        super().__init__(pipeline)
        self.spark, self.merged = spark, 0

    def merge(self) -> dict[str, str]:
        self.plans += 1
        pipeline = self.pipeline
        stage = stages.StageInput(pipeline.config, pipeline.source, pipeline.ledger, f"merge-{self.plans}", SALT)
        errors: dict[str, str] = {}

        def apply(uri: str) -> None:
            result = merge_batch.run(self.spark, uri)
            self.merged += len(result.tables)
            errors.update({one.table: one.error.kind for one in result.tables if one.error is not None})

        stages.merge(stage, apply)
        return errors

    def target(self, table: str) -> Target | None:
        """Its `current` as its files have it now."""
        lake = self.pipeline.config.lake
        path = Path(lake) / layout.current_table(self.pipeline.config.pipeline, TableName.parse(table))
        files = delta_files.read(path)
        return None if files is None else Target(lake, files.fields, files.rows_as_stored())
