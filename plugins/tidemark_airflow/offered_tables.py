"""Offers the ledger's tables in Airflow's own trigger forms, by one Airflow Variable per pipeline.

    health, of a capture run ──► Variable tidemark_tables_<pipeline> ──► the DAG processor, as it parses ──► forms

A form is a part of its DAG, and so made wherever the file is parsed; neither ledger nor source is asked there. The DAG
processor alone looks at the Variable, by the connection to Airflow's own database that it has anyway: a task parses the
file to find itself, and a command to list DAGs, and neither has a form to show. Nothing rests on it. What is not
offered can be typed, what is offered `plan` checks, and without the Variable the forms offer what the file names. A
form that changes is a new version of its DAG, so the Variable is written only when a table came or went.
Source: Airflow documentation, "Best Practices" (Airflow Variables; `get_parsing_context`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Final

from airflow.sdk import Variable, get_parsing_context

log = logging.getLogger(__name__)

# A dropdown of more is no help.
MOST: Final = 1000
_DESCRIPTION: Final = "The tables that the forms of the DAGs of this pipeline offer; written by its capture."


def variable(pipeline: str) -> str:
    return f"tidemark_tables_{pipeline}"


def offered(pipeline: str) -> tuple[str, ...]:
    """As `schema.table`, in order; none where nobody shows a form, or knows of any."""
    if get_parsing_context().dag_id is not None:
        return ()
    try:
        names = json.loads(Variable.get(variable(pipeline), default="[]"))
    except Exception as failed:  # a form with fewer tables is better than no DAG
        log.warning("Forms of %s offer what its file names alone: %s", pipeline, type(failed).__name__)
        return ()
    are_names = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    return tuple(names[:MOST]) if are_names else ()


def offer(pipeline: str, names: Iterable[str]) -> None:
    """From the next parsing on; of a task. Whatever Airflow says to it, the task goes on."""
    text = json.dumps(sorted(set(names))[:MOST])
    try:
        if Variable.get(variable(pipeline), default=None) != text:
            Variable.set(variable(pipeline), text, description=_DESCRIPTION)
    except Exception as failed:
        log.warning("Airflow's forms do not learn of new tables: %s", type(failed).__name__)
