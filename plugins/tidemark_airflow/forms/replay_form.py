"""Builds the trigger form of a replay DAG, and reads what was filled in.

As in the backfill's form, Airflow refuses a value of a wrong type, and `request` refuses a key that is no field. The
task itself checks the tables and the moment, because that needs ledger and lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Param

from tidemark.config import PipelineConfig
from tidemark.errors import ReplayRefused
from tidemark_airflow.forms import backfill_form

if TYPE_CHECKING:
    from tidemark.maintenance.replay_runs import ReplayRequest

STEPS: Final = {
    "as_of": "As of a moment: into tables of their own, beside the live ones",
    "rebuild": "From history: compute all rows of current again",
    "staged": "From staging: apply all staged batches once more, into new tables that then replace the live ones",
}


def form(config: PipelineConfig, tables: Iterable[str] = ()) -> dict[str, Param]:
    """The fields, in the order in which the UI shows them. `tables` are offered besides those that the file names."""
    of_backfill = backfill_form.form(config, tables)
    offered = of_backfill["tables"].schema
    return {
        "step": Param("as_of", type="string", title="What", enum=list(STEPS), values_display=STEPS),
        "tables": Param([], **{**offered, "description": "Tables, not patterns. None: every table, as of a moment."}),
        "other_tables": of_backfill["other_tables"],
        "moment": Param(
            None,
            type=["string", "null"],
            title="Moment",
            description="An LSN (16/B374D848), or a time with its zone (2026-11-17T00:00:00+01:00), "
            "for tables as of a moment. Empty: now.",
            maxLength=100,
        ),
    }


def request(config: PipelineConfig, answers: Mapping[str, Any], typed: Iterable[str]) -> ReplayRequest:
    """The request for the library. `typed` are the keys as they were sent. Raises ReplayRefused for a key that is not a
    field."""
    from tidemark.maintenance.replay_runs import ReplayRequest

    problems = backfill_form.unknown_fields(tuple(form(config)), typed)
    if problems:
        raise ReplayRefused(pipeline=config.pipeline, problems="; ".join(problems))
    return ReplayRequest(answers["step"], backfill_form.table_names(answers), (answers["moment"] or "").strip())
