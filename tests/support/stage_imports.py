"""Imports what the stages of tests/support/stages.py import: `stage_process` forks off a process that has done so."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from tidemark.staging.pandas_import import block_pandas_import

OF_STAGES: Final = (
    "spark_apps.compact_tables",
    "spark_apps.merge_batch",
    "tests.support.local_spark",
    "tests.support.stages",
    "tidemark.backfill.exported_snapshot",
    "tidemark.backfill.planning",
    "tidemark.backfill.range_reading",
    "tidemark.capture.confirm",
    "tidemark.capture.drain",
    "tidemark.capture.following.drain_cycles",
    "tidemark.capture.merge_planning",
    "tidemark.maintenance.compaction_runs",
    "tidemark.maintenance.staging_cleanup",
    "tidemark.target.table_compaction",
)

block_pandas_import()
for module in OF_STAGES:
    import_module(module)
