"""Writes a new pipeline's files: its YAML, the file of Airflow's DAGs, and SQL for the source's administrator.

On a terminal it prompts for the values of missing options. It never overwrites a file.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import yaml
from psycopg.conninfo import conninfo_to_dict

from tidemark.command_line import screen
from tidemark.command_line.invocation import CHECKOUT, PIPELINES_VARIABLE, LookUp
from tidemark.config import PipelineConfig, file_reader
from tidemark.config.sections import PIPELINE_NAME
from tidemark.errors import TidemarkError
from tidemark.source.grants_sql import grants_sql

DAG_FILE: Final = "tidemark_pipelines.py"
_DAGS: Final = """\
from tidemark_airflow.dag_factory import pipeline_dags

globals().update({dag.dag_id: dag for dag in pipeline_dags()})
"""
_ROLE: Final = "tidemark"

# Option -> the question, and the value of an empty answer.
_QUESTIONS: Final = {
    "source": ("Airflow connection of the source (type postgres)", "{name}_source"),
    "tables": ("Tables, for example shop.* public.orders", ""),
    "lake": ("Lake: a folder, or s3://bucket/path, gs://…, abfss://…", ""),
}


def init(options: argparse.Namespace, look_up: LookUp) -> int:
    """Write all of the files or none. Returns exit status 2 if the name is no pipeline's, or if a value is missing and
    there is no terminal."""
    if not re.fullmatch(PIPELINE_NAME, options.name):
        screen.say(f"A pipeline's name has letters, digits, '_' and '-', at most 64, not {options.name!r}.")
        return 2
    answers = _answers(options, is_asked=sys.stdin.isatty())
    if isinstance(answers, str):
        screen.say(answers)
        return 2
    folder = Path(options.folder or os.environ.get(PIPELINES_VARIABLE) or (CHECKOUT if CHECKOUT.is_dir() else "."))
    file = folder / f"{options.name}.yaml"
    script, dag_file = file.with_suffix(".sql"), _dag_file(options)
    for there in (file, script):
        if there.exists():
            screen.say(f"{there} is there already; nothing was written. Another name makes another pipeline.")
            return 1
    is_new = not dag_file.exists()
    written: list[Path] = []
    try:
        _write(file, _pipeline_file(options, answers), written)
        config = file_reader.load(file)
        _write(script, grants_sql(config, source_role(config, look_up)), written)
        if is_new:
            _write(dag_file, _DAGS, written)
    except (TidemarkError, OSError) as failed:
        for one in written:
            one.unlink()
        if isinstance(failed, TidemarkError):
            screen.say("Nothing was written.")
            raise
        screen.say(f"{failed.filename} cannot be written: {failed.strerror}. Nothing was written.")
        return 1
    screen.say(
        f"{file}: the pipeline",
        f"{script}: what the source's administrator runs in its database, once",
        f"{dag_file}: the DAGs of every pipeline{'' if is_new else ', there already'}",
        "",
        *_next_steps(config, folder, look_up),
    )
    return 0


def _write(file: Path, text: str, written: list[Path]) -> None:
    """Write a new file, and note it in `written` before its text, so that a failed call can remove it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as opened:
        written.append(file)
        opened.write(text)


def source_role(config: PipelineConfig, look_up: LookUp) -> str:
    """The user of the source's connection. Without a connection yet, the role's name in the documentation."""
    with suppress(TidemarkError):
        return str(conninfo_to_dict(look_up(config.source_connection).conninfo()).get("user") or _ROLE)
    return _ROLE


def _answers(options: argparse.Namespace, *, is_asked: bool) -> dict[str, str] | str:
    """The values from options and answers, or a sentence that names the missing options."""
    answers: dict[str, str] = {}
    for name, (question, default) in _QUESTIONS.items():
        default = default.format(name=options.name)
        said = getattr(options, name)
        answer = " ".join(said) if isinstance(said, list) else said
        if not answer and is_asked:
            with suppress(EOFError):
                answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip()
        answer = answer or default
        if not answer:
            return f"--{name} is missing: {question}. Nothing was written."
        answers[name] = answer
    return answers


def _pipeline_file(options: argparse.Namespace, answers: dict[str, str]) -> str:
    tables = [table for said in answers["tables"].split() for table in said.split(",") if table]
    slot = file_reader.default_slot(options.name)
    document = {
        "source": {"connection": answers["source"], "slot": slot, "publication": slot},
        "tables": tables,
        "lake": answers["lake"],
        "ledger": {"connection": options.ledger},
        "spark": {"connection": options.spark},
        "schedule": options.schedule,
        "auto_backfill": True,
    }
    written = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return f"# All options are in docs/configuration.md.\n{written}"


def _dag_file(options: argparse.Namespace) -> Path:
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
    named = options.dags or os.environ.get("AIRFLOW__CORE__DAGS_FOLDER")
    return Path(named) / DAG_FILE if named else home / "dags" / DAG_FILE


def _next_steps(config: PipelineConfig, folder: Path, look_up: LookUp) -> Iterator[str]:
    steps = []
    if os.environ.get(PIPELINES_VARIABLE) != str(folder):
        steps.append(f"Set {PIPELINES_VARIABLE}={folder.resolve()} for all of Airflow, and here.")
    steps.append(f"Have {Path(config.path).with_suffix('.sql')} run, and give the role a password.")
    connections = {config.source_connection: "postgres", config.ledger_connection: "postgres"}
    connections[config.spark_connection] = "spark"
    missing = [f"{name} ({kind})" for name, kind in connections.items() if not _is_there(name, look_up)]
    if missing:
        steps.append(f"Make the Airflow connections {', '.join(missing)}: docs/own-database.md, Connections.")
    steps.append(f"tidemark doctor {config.pipeline}: says whatever is missing still.")
    steps.append(f"Un-pause {config.pipeline}_capture, _verify, _maintenance: the first capture begins the backfill.")
    yield "Next:"
    yield from (f"  {number}. {step}" for number, step in enumerate(steps, 1))


def _is_there(name: str, look_up: LookUp) -> bool:
    with suppress(TidemarkError):
        look_up(name)
        return True
    return False
