"""Lists the steps from a pipeline file to a first proof, and which of them are done. Pure.

    connections ─► slot ─► capture ─► backfill ─► first proof

A pipeline is new until its tables hold the rows that they had before, and until anything of it is proven. Nothing is
wrong with a new pipeline: `health` shows one warning with the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Literal

from tidemark.config import PipelineConfig
from tidemark.ledger.observations.overview import PipelineStatus
from tidemark.schema.table_life import EXISTING_ROWS
from tidemark.source.wal.slot import SlotState
from tidemark.wording import counted

StepName = Literal["connections", "slot", "capture", "backfill", "first proof"]


@dataclass(frozen=True, slots=True)
class FirstStep:
    """`said` is the state in a few words, `way` what to do if the step is not done, `tables` the tables concerned."""

    name: StepName
    is_done: bool
    said: str
    way: str = ""
    tables: int = 0


def first_steps(
    config: PipelineConfig,
    ledger: PipelineStatus | None,
    slot: SlotState | None,
    unseen: Mapping[str, str],
    being_read: Collection[str],
) -> tuple[FirstStep, ...]:
    """All steps in order; empty if the pipeline is not new or its state cannot be read. `unseen` names what could
    not be read. `being_read` are the tables that a backfill reads now."""
    if "ledger" in unseen or _is_past_them(ledger):
        return ()
    dag, file = f"{config.pipeline}_capture", quote(config.path)
    start = f"Un-pause {dag} in Airflow, or: tidemark run {file}"
    has_run = ledger is not None and not has_never_run(ledger)
    away = ", ".join(sorted(unseen))
    return (
        FirstStep(
            "connections", not away, f"no answer: {away}" if away else "they answer", f"Why: tidemark doctor {file}"
        ),
        FirstStep("slot", slot is not None or has_run, f'"{config.slot}"', f"{start}; its first task makes it"),
        FirstStep("capture", has_run, f"{dag} has run" if has_run else f"{dag} has not run yet", start),
        _backfill(config, ledger, being_read),
        FirstStep("first proof", False, "nothing is proven yet", f"tidemark verify {file}"),
    )


def next_step(steps: Collection[FirstStep]) -> FirstStep | None:
    """The first step that is not done; None if the pipeline is not new."""
    return next((step for step in steps if not step.is_done), None)


def has_never_run(ledger: PipelineStatus) -> bool:
    """Whether no capture has ever ended."""
    return ledger.generation.number == 1 and ledger.generation.heartbeat_at is None


def _is_past_them(ledger: PipelineStatus | None) -> bool:
    """Whether a verify proved a part, or the slot is not the first one. A pipeline with history alone has nothing
    to prove and is past the steps after its first run."""
    if ledger is None or has_never_run(ledger):
        return False
    if ledger.generation.number > 1:
        return True
    provable = [table for table in ledger.tables if table.row.has_current]
    return not provable or any(table.verified is not None and table.verified.proven for table in provable)


def _backfill(config: PipelineConfig, ledger: PipelineStatus | None, being_read: Collection[str]) -> FirstStep:
    tables = () if ledger is None else ledger.tables
    empty = [table.table for table in tables if table.row.life.target == EXISTING_ROWS]
    reading = len(set(empty) & set(being_read))
    said = "the first capture finds the tables with rows"
    if tables:
        said = f"{counted(len(empty), 'table')} had rows before"
    if reading:
        said += f", {reading} of them {'is' if reading == 1 else 'are'} being read"
    way = f"airflow dags trigger {config.pipeline}_backfill"
    if reading:
        way = "It goes on by itself"
    elif config.auto_backfill:
        way = f"{config.pipeline}_capture starts it, or: {way}"
    is_done = bool(tables) and not empty
    return FirstStep("backfill", is_done, "every table has its rows" if is_done else said, way, len(empty))
