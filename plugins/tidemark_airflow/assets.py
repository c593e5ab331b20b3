"""Names the Airflow asset that stands for the two Delta tables of a source table.

One asset per table, `tidemark://<pipeline>/<schema>/<table>` (names as in the lake), by what the source
calls it now: the event says where its Delta tables lie. Which tables a
pipeline captures is known only when it runs, so its merge task declares one alias, `tidemark:<pipeline>`, and adds an
event to a table's asset when that table's position advanced. A DAG is scheduled by
`Asset("tidemark://shop/public/orders")`.

Events tell people and downstream DAGs that a table is newer. They arrive late and out of order, and a task that dies at
the wrong moment sends none: read the table, or the ledger, for what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from tidemark.config import PipelineConfig
from tidemark.formats.layout import current_table, history_table
from tidemark.names import TableName, folder

if TYPE_CHECKING:
    from tidemark.capture.table_progress import AdvancedTable


def pipeline_alias(pipeline: str) -> AssetAlias:
    """What the merge task of a pipeline declares as its outlet."""
    return AssetAlias(f"tidemark:{pipeline}")


def table_asset(pipeline: str, table: TableName) -> Asset:
    return Asset(f"tidemark://{folder(pipeline)}/{table.path}")


def event_extra(config: PipelineConfig, advanced: AdvancedTable) -> dict[str, Any]:
    """What an event tells: which changes came, how many rows, how far behind the source, what was decided when the
    table's definition changed, and where the tables are."""
    return {
        "generation": advanced.generation,
        "start_lsn": None if advanced.start_lsn is None else str(advanced.start_lsn),
        "end_lsn": str(advanced.end_lsn),
        "rows": advanced.rows,
        "lag_s": None if advanced.lag_s is None else round(advanced.lag_s, 1),
        "definition_changes": [
            {"lsn": str(change.lsn), "decided": change.decided, "reason": change.reason}
            for change in advanced.definition_changes
        ],
        "current": f"{config.lake}/{current_table(config.pipeline, advanced.table)}",
        "history": f"{config.lake}/{history_table(config.pipeline, advanced.table)}",
    }
