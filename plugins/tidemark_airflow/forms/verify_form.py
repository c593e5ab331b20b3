"""Builds the trigger form of a verify DAG, and reads what was filled in.

As the backfill's form (`form`): Airflow refuses a wrong type, `request` a key that is no field. A scheduled run takes
the defaults: a thirtieth of every table, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from tidemark.config import PipelineConfig
from tidemark.errors import VerifyFormInvalid
from tidemark_airflow.forms import backfill_form as backfill_form

if TYPE_CHECKING:
    from tidemark.backfill.verifying import VerifyRequest

SHARE = "1/30"


def form(config: PipelineConfig, tables: Iterable[str] = ()) -> dict[str, Param]:
    """The fields, in the order in which the UI shows them. `tables` are offered besides what the file names."""
    of_backfill = backfill_form.form(config, tables)
    offered = of_backfill["tables"].schema
    return {
        "tables": Param(
            [],
            **{
                **offered,
                "description": "What the pipeline file names, and what was captured so far. Without a table here or "
                "below: all that can be verified.",
            },
        ),
        "other_tables": of_backfill["other_tables"],
        "share": Param(
            SHARE,
            type=["string", "number"],
            title="Share",
            description="How much of each table is compared, that which was proven longest ago: 1 for all of it. "
            "Tables whose keys Spark orders otherwise are compared as a whole, a share of them in each run.",
            pattern=r"^\s*(1|1/[1-9][0-9]{0,3}|0?\.[0-9]{1,4})\s*$",
            exclusiveMinimum=0,
            maximum=1,
        ),
        "repair": Param(
            False,
            type="boolean",
            title="Repair",
            description="Write what the source has over what differs. Otherwise nothing is written but the keys of "
            "rows that differ, into a table of their own.",
        ),
        "row_filter": Param(
            None,
            **{
                **of_backfill["row_filter"].schema,
                "description": "Rows to compare, written as for a backfill: total >= 100 AND status = 'paid'. "
                "Rows that the source lacks are not compared, and nothing counts as proven.",
            },
        ),
        "readers": of_backfill["readers"],
    }


def request(config: PipelineConfig, answers: Mapping[str, Any], typed: Iterable[str]) -> VerifyRequest:
    """What the library is asked for; `typed` are the keys as they were sent. Raises VerifyFormInvalid for a key that is
    not a field, and for a share that is none."""
    from tidemark.backfill.verifying import VerifyRequest

    fields = tuple(form(config))
    problems = backfill_form.unknown_fields(fields, typed)
    share = Fraction(str(answers["share"]).strip())
    if not 0 < share <= 1:
        problems.append("`share` is above 0, and 1 at most")
    if problems:
        raise VerifyFormInvalid(pipeline=config.pipeline, problems="; ".join(problems), fields=", ".join(fields))
    return VerifyRequest(
        tables=backfill_form.table_names(answers),
        row_filter=(answers["row_filter"] or "").strip() or None,
        share=share,
        repair=answers["repair"],
        readers=answers["readers"],
    )
