"""Names the tables of a merge for OpenLineage: a source table, and the two Delta tables made of it.

Names follow OpenLineage's specification ("Naming"): `postgres://host:port` and `database.schema.table`; `s3://bucket`
and the key; `file` and the path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk.module_loading import import_string

from tidemark.config import PipelineConfig
from tidemark.formats.layout import current_table, history_table
from tidemark.names import TableName


@dataclass(frozen=True, slots=True)
class Lineage:
    """Datasets as (namespace, name)."""

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


def lineage_of(config: PipelineConfig, source: str, tables: Iterable[TableName]) -> Lineage:
    """`source` is the libpq connection string; of it host, port and database are used, and no secret."""
    from psycopg.conninfo import conninfo_to_dict

    parameters = conninfo_to_dict(source)
    server = f"postgres://{parameters.get('host', 'localhost')}:{parameters.get('port', 5432)}"
    tables = tuple(tables)
    kinds = (history_table, current_table)
    return Lineage(
        inputs=tuple((server, f"{parameters.get('dbname')}.{table.schema}.{table.name}") for table in tables),
        outputs=tuple(_in_lake(f"{config.lake}/{kind(config.pipeline, table)}") for table in tables for kind in kinds),
    )


def facets(lineage: Lineage) -> Any:
    """What Airflow's OpenLineage provider takes; it alone asks for it, so it is there."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    operator_lineage = import_string("airflow.providers.openlineage.extractors.OperatorLineage")
    return operator_lineage(
        inputs=[Dataset(namespace=namespace, name=name) for namespace, name in lineage.inputs],
        outputs=[Dataset(namespace=namespace, name=name) for namespace, name in lineage.outputs],
    )


def _in_lake(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    if not parts.scheme or parts.scheme == "file":
        return "file", parts.path
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    return f"{scheme}://{parts.netloc}", parts.path.lstrip("/")
