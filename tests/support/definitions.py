"""What the ledger says of a table's columns and of its life, read back by tests."""

from __future__ import annotations

from tests.support.pipeline import Pipeline
from tidemark.capture.definitions.marks import SOURCE_CHANGED


def state(pipeline: Pipeline, table: str = "public.orders") -> tuple[str, str | None]:
    """How it is merged, and why it needs a backfill if the source changed."""
    row = pipeline.table_row(table)
    return row.life.merge, row.backfill_reason if row.backfill_kind == SOURCE_CHANGED else None


def versions(pipeline: Pipeline) -> list[tuple[str, ...]]:
    """The names of each version's columns."""
    rows = pipeline.ledger_query("SELECT definition FROM tidemark.schema_versions ORDER BY version")
    return [tuple(c["name"] for c in definition["columns"]) for (definition,) in rows]


def missing(pipeline: Pipeline) -> dict[str, str | None]:
    """What older rows have of each column, as the newest version says."""
    rows = pipeline.ledger_query("SELECT definition FROM tidemark.schema_versions ORDER BY version DESC LIMIT 1")
    return {column["name"]: column["missing"] for column in rows[0][0]["columns"]}


def numbers(pipeline: Pipeline) -> dict[str, int]:
    """Which column of the source each is, as the newest version says."""
    rows = pipeline.ledger_query("SELECT definition FROM tidemark.schema_versions ORDER BY version DESC LIMIT 1")
    return {column["name"]: column["attnum"] for column in rows[0][0]["columns"]}
