"""Scenarios -> what is wrong with them: plays one or many of them on one pipeline and evaluates what they expect.

Several scenarios go through the pipeline's runs in step: each does what it does at the source up to its next `--
step:`, then one run serves them all, then each is judged by its own tables. A drain that one of them asks for is one
more batch for the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import types as T

from tests.support import judge
from tests.support.capture import Environment
from tests.support.delta_files import Row
from tests.support.scenario import Expectation, Scenario, Statement, Step, split_columns
from tidemark.config import TableRule
from tidemark.lsn import Lsn
from tidemark.names import METADATA_COLUMNS, TableName


class Unexpected(AssertionError):
    """What a scenario says does not hold; the message begins with the file and line that says it."""


def rules(scenario: Scenario) -> tuple[TableRule, ...]:
    """The scenario's entries of `tables:`; its schema is named as its file."""
    schema = scenario.name
    found = [TableRule(f"{schema}.{pattern}") for pattern in scenario.capture]
    for table in {*scenario.leave_out, *scenario.mask, *scenario.target}:
        found.append(
            TableRule(
                f"{schema}.{table}",
                leave_out=tuple(scenario.leave_out.get(table, ())),
                mask=dict(scenario.mask.get(table, {})),
                target=dict(scenario.target.get(table, {})),
            )
        )
    return tuple(found)


def play(environment: Environment, scenarios: Iterable[Scenario]) -> dict[str, BaseException | None]:
    """Play all of them to their ends; what stopped each of them, None for those that hold."""
    plays = [Play(scenario, environment) for scenario in scenarios]
    for one in plays:
        one.attempt(one.begin)
    while waiting := [one for one in plays if one.step is not None and one.failed is None]:
        drains = [one for one in waiting if one.step is not None and one.step.name == "drain"]
        turn = drains or waiting
        if len({one.step.name for one in turn if one.step is not None}) != 1:
            raise AssertionError(f"these scenarios cannot share a pipeline: {[one.scenario.name for one in turn]}")
        staged_before = _staged(environment)
        try:
            _perform(environment, turn[0].step)
        except Exception as failed:
            for one in waiting:
                one.failed = failed
            break
        for one in turn:
            one.staged_before = staged_before
            one.attempt(one.after_step)
    if any(one.failed is None and not one.refused for one in plays):
        again = judge.second_run_changes_nothing(environment)
        for one in plays:
            mine = [
                wrong
                for wrong in again
                if f"/{TableName(one.scenario.name, 'x').path.split('/')[0]}/" in wrong or "/" not in wrong
            ]
            if one.failed is None and mine:
                one.failed = Unexpected("\n".join(mine))
    return {one.scenario.name: one.failed for one in plays}


def _perform(environment: Environment, step: Step | None) -> None:
    assert step is not None
    if step.refused is None:
        environment.step(step.name)
        return
    try:
        environment.step(step.name)
    except Exception as refusal:
        if re.search(step.refused, str(refusal)):
            return
        raise
    raise Unexpected(f"line {step.line}: the run was not refused")


def _staged(environment: Environment) -> Lsn:
    with environment.ledger_connection() as connection:
        found = connection.execute("SELECT to_regclass('tidemark.generations') IS NOT NULL").fetchone()
        if not found or not found[0]:
            return Lsn(0)
        row = connection.execute("SELECT max(staged_lsn) FROM tidemark.generations").fetchone()
        return Lsn(0) if row is None or row[0] is None else row[0]


@dataclass(slots=True)
class Play:
    """One scenario on its way: `at` is the next act, `step` the step it waits for, `excused` the tables it says are
    marked.
    """

    scenario: Scenario
    environment: Environment
    at: int = 0
    step: Step | None = None
    failed: BaseException | None = None
    excused: set[str] = field(default_factory=set)
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)
    staged_before: Lsn = field(default_factory=lambda: Lsn(0))
    refused: bool = False

    def attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as failed:
            self.failed = failed

    def begin(self) -> None:
        self.environment.execute(f'CREATE SCHEMA "{self.scenario.name}"', self._session("main"), self.scenario.name)
        self.advance()

    def advance(self) -> None:
        """Do what happens at the source, up to the next step or the end."""
        self.step = None
        while self.at < len(self.scenario.acts):
            act = self.scenario.acts[self.at]
            self.at += 1
            if isinstance(act, Step):
                self.step = act
                return
            if isinstance(act, Statement):
                try:
                    self.environment.execute(act.sql, self._session(act.session), search_path=self.scenario.name)
                except Exception as failed:
                    raise Unexpected(f"{self.scenario.name}.sql:{act.line}: {failed}") from failed

    def after_step(self) -> None:
        """Evaluate the expectations that follow, judge the tables after a run, go on at the source."""
        step = self.step
        assert step is not None
        self.refused = self.refused or step.refused is not None
        self.lacking = {}
        while self.at < len(self.scenario.acts) and isinstance(act := self.scenario.acts[self.at], Expectation):
            self.at += 1
            try:
                self.expect(act)
            except AssertionError as wrong:
                raise Unexpected(
                    f"{self.scenario.name}.sql:{act.line}: expected {act.kind} {act.table}: {wrong}"
                ) from wrong
        if step.name == "run" and step.refused is None:
            found = judge.wrongs(self.environment, sorted(self._captured()), self.excused, self.lacking)
            if found:
                raise Unexpected(f"after the step of {self.scenario.name}.sql:{step.line}:\n" + "\n".join(found))
        self.advance()

    def _session(self, name: str) -> str:
        return f"{self.scenario.name} {name}"

    def _captured(self) -> dict[str, judge.TableRow]:
        return {
            table: row
            for table, row in judge.captured(self.environment).items()
            if TableName.parse(table).schema == self.scenario.name
        }

    # --- expectations --------------------------------------------------------------------------------------------

    def expect(self, expected: Expectation) -> None:
        table = str(TableName(self.scenario.name, expected.table))
        match expected.kind:
            case "history" | "current":
                self._rows(expected, table)
            case "not yet in current":
                found = judge.read(self.environment, "current", table)
                assert found is not None, "there is no current table"
                assert expected.detail not in {f.name for f in found.fields}, "it is there"
                self.lacking[table] = (expected.detail,)
            case "no current":
                assert judge.read(self.environment, "current", table) is None, "there is one"
            case "columns":
                frame = judge.read(self.environment, "current", table)
                assert frame is not None, "there is no current table"
                columns = [f.name for f in frame.fields if f.name not in METADATA_COLUMNS]
                assert columns == split_columns(expected.detail), f"it has {columns}"
            case "tables":
                wanted = {str(TableName(self.scenario.name, name.strip())) for name in expected.table.split(",")}
                assert set(self._captured()) == wanted, f"captured are {sorted(self._captured())}"
            case "parked" | "needs backfill" | "marked" | "merging":
                self._state(expected, table)
            case "converted":
                assert expected.detail == self._converted(table), f"counted were {self._converted(table)}"
            case "batches at least" | "batches":
                self._batches(expected)
            case "spark not started":
                assert not self.environment.report.spark_started
            case "confirmed everything" | "confirmed less than staged" | "confirmed up to the batch before":
                self._positions(expected.kind)
            case "nowhere in the lake":
                self._nowhere(expected.detail.encode())

    def _rows(self, expected: Expectation, table: str) -> None:
        found = judge.read(self.environment, expected.kind, table)
        assert found is not None, "there is no such Delta table"
        held = judge.in_order(found.rows()) if expected.kind == "history" else found.rows()
        times = {field.name: field.dataType for field in found.fields}
        columns = [(column, times) for column in split_columns(expected.detail)]
        rows = [[_cell(column, types, row) for column, types in columns] for row in held]
        wanted = expected.rows
        if expected.kind == "current":
            rows, wanted = sorted(rows), sorted(wanted)
        same = len(rows) == len(wanted) and all(
            len(have) == len(want) and all(w in ("*", h) for h, w in zip(have, want, strict=True))
            for have, want in zip(rows, wanted, strict=True)
        )
        assert same, "it is\n" + "\n".join("    " + " | ".join(row) for row in rows)

    def _state(self, expected: Expectation, table: str) -> None:
        with self.environment.ledger_connection() as connection:
            row = judge.ledger_tables.one(connection, self.environment.config.pipeline, table)
        assert row is not None, "the ledger does not know the table"
        said = judge.marked(row)
        if expected.kind == "merging":
            assert said is None, f"it is {said}"
            return
        beginning = {"parked": "parked", "needs backfill": "needs backfill", "marked": ""}[expected.kind]
        assert said is not None, "it is merging"
        assert said.startswith(beginning), f"it is {said}"
        assert re.search(expected.detail, said), f"it is {said}"
        self.excused.add(table)

    def _converted(self, table: str) -> str:
        with self.environment.ledger_connection() as connection:
            rows = connection.execute(
                "SELECT key, sum(value::bigint)::bigint FROM tidemark.batch_tables, jsonb_each_text(converted) "
                'WHERE "table" = %s GROUP BY key ORDER BY key',
                (table,),
            ).fetchall()
        return ", ".join(f"{column}={count}" for column, count in rows)

    def _batches(self, expected: Expectation) -> None:
        with self.environment.ledger_connection() as connection:
            row = connection.execute(
                "SELECT count(DISTINCT start_lsn) FROM tidemark.batch_tables WHERE start_lsn >= %s",
                (self.staged_before,),
            ).fetchone()
        assert row is not None
        wanted = int(expected.table)
        assert row[0] == wanted or (expected.kind == "batches at least" and row[0] > wanted), f"there are {row[0]}"

    def _positions(self, kind: str) -> None:
        confirmed, staged = self.environment.confirmed_lsn(), self.environment.staged_lsn()
        assert confirmed is not None
        wanted = {
            "confirmed everything": confirmed == staged,
            "confirmed less than staged": confirmed < staged,
            "confirmed up to the batch before": self.staged_before == confirmed < staged,
        }[kind]
        assert wanted, f"confirmed is {confirmed}, staged {staged}, before this step staged {self.staged_before}"

    def _nowhere(self, needle: bytes) -> None:
        found = [
            str(path)
            for path in Path(self.environment.config.lake).rglob("*")
            if path.is_file() and _holds(path, needle)
        ]
        assert not found, f"it stands in {found[:3]}"


def _holds(path: Path, needle: bytes) -> bool:
    if path.suffix != ".parquet":
        return needle in path.read_bytes()
    return needle.decode() in str(pq.read_table(path).to_pylist())


_EXPRESSION = re.compile(
    r"(?P<function>left|length)\((?P<of>\w+)(?:, (?P<count>\d+))?\)|(?P<map>\w+)\['(?P<key>.+)'\]|(?P<name>\w+)"
)


def _cell(expression: str, types: dict[str, T.DataType], row: Row) -> str:
    """A column, `left(column, 3)`, `length(column)` or `_text['column']` of a row, as a scenario file writes it."""
    parsed = _EXPRESSION.fullmatch(expression)
    assert parsed is not None, f"{expression} is neither a column nor left(), length() or map['key']"
    name = parsed["name"] or parsed["of"] or parsed["map"]
    value = row[name]
    if value is None:
        return "∅"
    if parsed["map"]:
        return dict(value).get(parsed["key"]) or "∅"
    text = _as_text(value, types[name])
    if parsed["function"] == "left":
        return text[: int(parsed["count"])].strip()
    return str(len(text)) if parsed["function"] == "length" else text.strip()


def _as_text(value: Any, held: T.DataType) -> str:
    match held:
        case T.TimestampType() | T.TimestampNTZType():
            return str(datetime(1970, 1, 1) + timedelta(microseconds=value))
        case T.DateType():
            return str(date(1970, 1, 1) + timedelta(days=value))
        case T.ArrayType(elementType=element):
            return " ".join("∅" if e is None else _as_text(e, element) for e in value)
    return str(value)
