"""Writes a view that computes the generated columns which a table is captured without."""

from __future__ import annotations

from tidemark.config import PipelineConfig
from tidemark.formats import layout
from tidemark.ledger.captured.tables import TableRow
from tidemark.names import TableName, spark_identifier
from tidemark.postgres import postgres_session
from tidemark.schema.fingerprint import GENERATED, VIRTUAL
from tidemark.source.catalogue import catalog

TIMEOUT_S = 10


def view(config: PipelineConfig, row: TableRow, *, source: str) -> str:
    """The statement, in Spark's SQL but for the expressions, which are the source's; "" for a table that lacks none.
    Raises psycopg.Error where the source cannot be read."""
    missing = [column.name for column in row.uncaptured if column.why in (GENERATED, VIRTUAL)]
    if not missing or row.fingerprint is None:
        return ""
    with postgres_session.connect(
        source,
        application_name=config.application_name,
        lock_timeout_s=TIMEOUT_S,
        statement_timeout_s=TIMEOUT_S,
    ) as session:
        expressions = catalog.generated_as(session, row.fingerprint["relation_oid"])
    table = TableName.parse(row.table)
    path = f"{config.lake}/{layout.current_table(config.pipeline, table)}"
    computed = [f"{expressions[name]} AS {spark_identifier(name)}" for name in missing if name in expressions]
    return "\n".join(
        (
            "-- The expressions are PostgreSQL's. Look at their casts: Spark's plain numeric has no decimals.",
            f"CREATE VIEW {spark_identifier(table.name)} AS",
            "SELECT *,",
            ",\n".join(f"       {expression}" for expression in computed),
            f"  FROM delta.{spark_identifier(path)}",
        )
    )
