"""Builds the trigger form of a backfill DAG, and reads what was filled in.

The form is Airflow's: a `Param` with JSON Schema per field, and the same for a person in the UI, `airflow dags trigger
--conf` and REST, which refuse a wrong type or number before a run exists. What needs the source (does the table exist,
does the filter run) is refused by `plan`. Neither ledger nor source is asked while a DAG file is parsed: the
multi-select offers what the file names, and the tables of its patterns as the last runs knew them (`offered_tables`).
A form without tables means all that are wanted.

Airflow drops no key that the form does not have: `{"table": …}` would silently mean all tables, so `request` refuses
it. Source: Airflow documentation, "Params"; the multi-select empties to null, so `tables` may be null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Param

from tidemark.config import PipelineConfig, TableRule
from tidemark.errors import BackfillFormInvalid
from tidemark.wording import closest, duration

if TYPE_CHECKING:
    from tidemark.backfill.planning import BackfillRequest

MODES: Final = {
    "chunks": "chunks: short queries by key, beside the running capture",
    "exported_snapshot": "exported_snapshot: all rows as of one LSN, unless a try of the reader or the exporting "
    "session ends: what was not read then is of a later one; for a first load, by one reader; holds one snapshot open",
    "keys": "keys: only the keys given below, of one table",
}
EXPORTED: Final = "exported_snapshot"
MAX_READERS: Final = 16
MAX_CHUNK_ROWS: Final = 10_000_000
_RARE: Final = "Rarely needed"
_OF_AIRFLOW: Final = {"openlineage"}  # what TriggerDagRunOperator may add to a conf
_NAMES: Final = {"type": "string", "minLength": 1}


def form(config: PipelineConfig, tables: Iterable[str] = ()) -> dict[str, Param]:
    """The fields, in the order in which the UI shows them. `tables` are offered besides what the file names."""
    bounds = config.bounds
    offered = {**{rule.pattern: _label(rule) for rule in config.tables}, **{name: name for name in tables}}
    return {
        "tables": Param(
            [],
            type=["array", "null"],
            title="Tables",
            description="What the pipeline file names, and what was captured so far. Without a table here or below: "
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
            description="One per line: only these and the key are read, of every row that the other fields say; the "
            "other columns stay as they are in the lake. For tables with a key that are named above.",
            items=_NAMES,
            section=_RARE,
        ),
        "replace": Param(
            False,
            type="boolean",
            title="Replace",
            description="Close an open backfill of the same table and begin anew. Otherwise it is continued, or, "
            "if it has another filter, mode or columns, this one is refused.",
            section=_RARE,
        ),
    }


def request(config: PipelineConfig, answers: Mapping[str, Any], typed: Iterable[str]) -> BackfillRequest:
    """What the library is asked for; `typed` are the keys as they were sent, those that the form lacks included.

    Raises BackfillFormInvalid for a key that is not a field.
    """
    from tidemark.backfill.planning import BackfillRequest

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
    """A sentence per key that was sent and is no field."""
    names, typed = tuple(names), tuple(typed)
    strange = sorted(set(typed) - set(names) - _OF_AIRFLOW)
    return [f"{key!r} is no field{_did_you_mean(key, names, typed)}" for key in strange]


def table_names(answers: Mapping[str, Any]) -> tuple[str, ...]:
    """The tables of both fields, each once."""
    names = [name.strip() for field in ("tables", "other_tables") for name in answers[field] or ()]
    return tuple(dict.fromkeys(name for name in names if name))


def readers(answers: Mapping[str, Any]) -> list[int]:
    """The numbers of the reading tasks. A snapshot is exported and read by one."""
    return [1] if answers.get("mode") == EXPORTED else list(range(1, answers["readers"] + 1))


def _label(rule: TableRule) -> str:
    return rule.pattern if rule.exact else f"{rule.pattern} (all that are captured)"


def _did_you_mean(key: str, fields: Iterable[str], typed: Iterable[str]) -> str:
    meant = closest(key, fields, taken=typed)
    return f" (did you mean {meant!r}?)" if meant else ""
