"""The transitions of a table's life hang together, stand in the documentation, and are what the ledger goes by."""

from __future__ import annotations

import ast
import re
from itertools import product

import pytest

from sandbox.documents.life_drawing import drawing
from tests.unit.test_architecture import REPOSITORY, modules_below
from tidemark.schema.table_life import (
    FORGOTTEN,
    INITIAL,
    STATES,
    TRANSITIONS,
    Machine,
    TableLife,
)

PAGE = (REPOSITORY / "docs/table-life.md").read_text()
WRITES = re.compile(r"(INSERT INTO|UPDATE) tidemark\.tables\b.*\bSET\b", re.DOTALL)
LIFE_COLUMN = re.compile(r"(?<![.\w])(state|captured|join_horizon|needs_backfill|backfill_kind|forgotten_at|error) =")


@pytest.mark.parametrize("machine", STATES)
def test_events_lead_from_states_to_states(machine: Machine) -> None:
    for pairs in TRANSITIONS[machine].values():
        assert pairs
        assert {*pairs.keys(), *pairs.values()} <= set(STATES[machine])


@pytest.mark.parametrize("machine", STATES)
def test_every_state_is_reached_and_left(machine: Machine) -> None:
    steps = {pair for pairs in TRANSITIONS[machine].values() for pair in pairs.items()}
    reached = {INITIAL[machine]}
    while more := {after for before, after in steps if before in reached} - reached:
        reached |= more
    assert reached == set(STATES[machine])
    assert {before for before, after in steps if before != after} == set(STATES[machine])


@pytest.mark.parametrize("machine", STATES)
def test_the_page_draws_the_machine_and_names_its_states_and_events(machine: Machine) -> None:
    section = PAGE.split(f"## {machine.capitalize()}\n")[1].split("\n## ")[0]
    assert f"```mermaid\n{drawing(machine)}\n```" in section
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*STATES[machine], *TRANSITIONS[machine]]


def test_no_function_of_the_ledger_changes_a_life_without_a_step() -> None:
    stepless = []
    for module in modules_below("include/tidemark/ledger"):
        for function in ast.walk(ast.parse(module.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            texts = [n.value for n in ast.walk(function) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            calls = {ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
            if any(WRITES.search(text) and LIFE_COLUMN.search(text.partition("SET")[2]) for text in texts):
                stepless += [function.name] if not calls & {"step", "table_lives.step"} else []
    assert stepless == []


def test_whatever_a_table_is_in_the_stages_answer_alike() -> None:
    for states in product(*STATES.values()):
        life = TableLife(*states)
        assert not (life.is_captured and not life.is_listed)
        assert not (life.may_be_backfilled and (life.is_parked or life.awaits_its_join))
        assert not (life.keeps_its_promise and life.needs_backfill)
        assert not (life.is_marked_for_good and not life.needs_backfill)
        assert not (life.may_be_seen_empty and life.is_marked_for_good)
        assert life.is_listed == (life.capture != FORGOTTEN)
