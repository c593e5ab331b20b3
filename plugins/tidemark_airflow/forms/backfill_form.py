"""Builds the trigger form of a backfill DAG, and reads what was filled in.

The form consists of Airflow's Params, each with JSON Schema. The UI, `airflow dags trigger --conf` and REST refuse a
value of a wrong type or size before a run exists. The task `plan` refuses what only the source can decide: whether the
table exists, and whether the filter runs. Parsing a DAG file uses neither ledger nor source: the multi-select offers
the tables that the file names, and those of its patterns that the last runs recorded (`offered_tables`). A form without
tables means all tables that need a backfill.

Airflow accepts keys that the form does not have. `{"table": …}` would silently mean all tables, so `request` refuses
such keys. Source: Airflow documentation, "Params"; the multi-select empties to null, so `tables` may be null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Param

from tidemark.config import PipelineConfig, TableRule
from tidemark.errors import BackfillFormInvalid
from tidemark.wording import closest, duration

if TYPE_CHECKING:
    from tidemark.backfill.backfill_tables import BackfillRequest

MODES: Final = {
    "chunks": "chunks: short queries by key, beside the running capture",
    "exported_snapshot": "exported_snapshot: all rows as of one LSN; for a first load, by one reader; holds one "
    "snapshot open. If the reader is retried or the exporting session ends, the rest is read as of a later LSN",
    "keys": "keys: only the keys given below, of one table",
}
EXPORTED: Final = "exported_snapshot"
MAX_READERS: Final = 16
MAX_CHUNK_ROWS: Final = 10_000_000
_RARE: Final = "Rarely needed"
_OF_AIRFLOW: Final = {"openlineage"}  # what TriggerDagRunOperator may add to a conf
_NAMES: Final = {"type": "string", "minLength": 1}


def form(config: PipelineConfig, tables: Iterable[str] = ()) -> dict[str, Param]:
    """The fields, in the order in which the UI shows them. `tables` are offered besides those that the file names."""
    bounds = config.bounds
    offered = {**{rule.pattern: _label(rule) for rule in config.tables}, **{name: name for name in tables}}
    return {
        "tables": Param(
            [],
            type=["array", "null"],
            title="Tables",
            description="Tables of the pipeline file, and those captured so far. Without a table here or below: "
            "all tables that need a backfill.",
            examples=list(offered),
            values_display=offered,
            items=_NAMES,
        ),
        "other_tables": Param(
            [],
            type=["array", "null"],
            title="Tables by name",
            description="One per line, for tables that are not offered above: shop.orders",
            items=_NAMES,
        ),
        "mode": Param("chunks", type="string", title="Mode", enum=list(MODES), values_display=MODES),
        "row_filter": Param(
            None,
            type=["string", "null"],
            title="Row filter",
            description="Rows to read: columns compared with literals, now() or current_date, by = <> < <= > >=, IN, "
            "BETWEEN, LIKE, IS NULL, AND, OR, NOT: total >= 100 AND placed_at > now() - INTERVAL '7 days'. Other rows "
            "stay as they are in the lake. For one table, or several that all have the columns.",
            format="multiline",
            maxLength=10_000,
        ),
        "chunk_rows": Param(
            bounds.chunk_rows,
            type="integer",
            title="Rows of the first chunk",
            description=f"Later ones take about {duration(bounds.chunk_s)} each.",
            minimum=1,
            maximum=MAX_CHUNK_ROWS,
        ),
        "readers": Param(
            bounds.readers,
            type="integer",
            title="Readers",
            description="Tasks that read at the same time, each with one session at the source.",
            minimum=1,
            maximum=MAX_READERS,
        ),
        "keys": Param(
            [],
            type=["array", "null"],
            title="Keys",
            description='For mode keys: one object per row, with all key columns: [{"order_id": 7, "line_no": 1}]',
            items={"type": "object", "minProperties": 1},
            section=_RARE,
        ),
        "columns": Param(
            [],
            type=["array", "null"],
            title="Columns",
            description="One per line: only these and the key are read, of each row that the other fields select. The "
            "other columns stay as they are in the lake. For tables with a key that are named above.",
            items=_NAMES,
            section=_RARE,
        ),
        "replace": Param(
            False,
            type="boolean",
            title="Replace",
            description="Close an open backfill of the same table and begin anew. Otherwise the open one is continued; "
            "if it has another filter, mode or columns, this request is refused.",
            section=_RARE,
        ),
    }


def request(config: PipelineConfig, answers: Mapping[str, Any], typed: Iterable[str]) -> BackfillRequest:
    """The request for the library. `typed` are all keys that were sent, including those that the form does not have.

    Raises BackfillFormInvalid for a key that is not a field.
    """
    from tidemark.backfill.backfill_tables import BackfillRequest

    fields = tuple(form(config))
    unknown = unknown_fields(fields, typed)
    if unknown:
        raise BackfillFormInvalid(pipeline=config.pipeline, problems="; ".join(unknown), fields=", ".join(fields))
    return BackfillRequest(
        tables=table_names(answers),
        row_filter=(answers["row_filter"] or "").strip() or None,
        chunk_rows=answers["chunk_rows"],
        mode=answers["mode"],
        keys=tuple(answers["keys"] or ()),
        replace=answers["replace"],
        readers=answers["readers"],
        columns=tuple(answers.get("columns") or ()),
    )


def unknown_fields(names: Iterable[str], typed: Iterable[str]) -> list[str]:
    """A sentence for each key that was sent and is no field."""
    names, typed = tuple(names), tuple(typed)
    strange = sorted(set(typed) - set(names) - _OF_AIRFLOW)
    return [f"{key!r} is no field{_did_you_mean(key, names, typed)}" for key in strange]


def table_names(answers: Mapping[str, Any]) -> tuple[str, ...]:
    """The tables of both fields, each once."""
    names = [name.strip() for field in ("tables", "other_tables") for name in answers[field] or ()]
    return tuple(dict.fromkeys(name for name in names if name))


def readers(answers: Mapping[str, Any]) -> list[int]:
    """The numbers of the reading tasks. An exported snapshot is read by one task."""
    return [1] if answers.get("mode") == EXPORTED else list(range(1, answers["readers"] + 1))


def _label(rule: TableRule) -> str:
    return rule.pattern if rule.exact else f"{rule.pattern} (all that are captured)"


def _did_you_mean(key: str, fields: Iterable[str], typed: Iterable[str]) -> str:
    meant = closest(key, fields, taken=typed)
    return f" (did you mean {meant!r}?)" if meant else ""
