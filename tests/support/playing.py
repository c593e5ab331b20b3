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
from tests.support.backfill_steps import BackfillSteps
from tests.support.capture import Environment
from tests.support.delta_files import Row
from tests.support.hung_commit import HungCommit
from tests.support.scenario import ByHand, Commit, Expectation, Pause, Scenario, Statement, Step, split_columns
from tidemark.config import TableRule
from tidemark.ledger.captured import merge_states, unfit_values
from tidemark.lsn import Lsn
from tidemark.names import METADATA_COLUMNS, TableName

# Where some wait for one of these and others do not, these go first.
EXTRA = ("drain", "read", "end backfill", "backfill wanted")
JUDGED = ("run", "end backfill", "backfill wanted", "backfill again", "verify", "repair")


class Unexpected(AssertionError):
    """What a scenario says does not hold; the message begins with the file and line that says it."""


def rules(scenario: Scenario) -> tuple[TableRule, ...]:
    """The scenario's entries of `tables:`; its schema is named as its file."""
    schema = scenario.name
    table_rules = [TableRule(p if "." in p else f"{schema}.{p}") for p in scenario.capture]
    for table in {*scenario.leave_out, *scenario.mask, *scenario.target}:
        table_rules.append(
            TableRule(
                f"{schema}.{table}",
                leave_out=tuple(scenario.leave_out.get(table, ())),
                mask=dict(scenario.mask.get(table, {})),
                target=dict(scenario.target.get(table, {})),
            )
        )
    return tuple(table_rules)


def play(environment: Environment, scenarios: Iterable[Scenario]) -> dict[str, BaseException | None]:
    """Play all of them to their ends; what stopped each of them, None for those that hold."""
    plays = [Play(scenario, environment) for scenario in scenarios]

    def fire(point: str, table: TableName | None) -> None:
        for one in plays:
            if table is None or table.schema == one.scenario.name:
                one.attempt(lambda one=one: one.fire(point if table is None else f"{point} {table.name}"))  # type: ignore[misc]

    steps = BackfillSteps(environment, fire)
    for one in plays:
        one.attempt(one.begin)
    while waiting := [one for one in plays if one.step is not None and one.failed is None]:
        turn = min(_of_each_step(waiting), key=lambda some: _rank(some[0]))
        if any(_rank(one) == _rank(turn[0]) and one not in turn for one in waiting):
            raise AssertionError(f"these scenarios cannot share a pipeline: {[one.scenario.name for one in waiting]}")
        staged_before = _staged(environment)
        try:
            _perform(steps, turn)
        except Exception as failed:
            for one in waiting:
                one.failed = failed
            break
        for one in turn:
            one.staged_before = staged_before
            one.attempt(one.after_step)
    for one in plays:
        one.attempt(one.release_all)
    environment.close()  # what a scenario that failed left open would hold up the slots of others
    if any(one.failed is None and not one.refused for one in plays):
        again = judge.second_run_changes_nothing(environment)
        for one in plays:
            mine = [wrong for wrong in again if _is_of(wrong, one.scenario) or "/" not in wrong]
            if one.failed is None and mine:
                one.failed = Unexpected("\n".join(mine))
    return {one.scenario.name: one.failed for one in plays}


def _of_each_step(waiting: list[Play]) -> list[list[Play]]:
    plays: dict[str, list[Play]] = {}
    for one in waiting:
        assert one.step is not None
        plays.setdefault(one.step.name, []).append(one)
    return list(plays.values())


def _rank(one: Play) -> int:
    assert one.step is not None
    return EXTRA.index(one.step.name) if one.step.name in EXTRA else len(EXTRA)


def _perform(steps: BackfillSteps, turn: list[Play]) -> None:
    """The step that all of these wait for."""
    step, environment = turn[0].step, steps.environment
    assert step is not None
    if steps.has_killed and step.name != "retry":
        environment.let_leases_end()  # whatever comes next comes long after who was killed
    match step.name:
        case "crash at":
            steps.crash(step.crash_at, [one.scenario for one in turn])
        case "retry":
            steps.retry(step.crash_at)
        case "plan":
            steps.plan([one.scenario for one in turn])
        case "read":
            steps.read()
        case "end backfill":
            steps.end()
        case "backfill wanted":
            steps.wanted()
        case "verify" | "repair":
            steps.verify(repair=step.name == "repair")
        case "backfill again":
            for table, written in steps.again().items():
                for one in turn:
                    if _is_of(table, one.scenario):
                        one.failed = Unexpected(f"the second backfill wrote to {table}: {written}")
        case name if step.refused is None:
            environment.step(name)
        case name:
            try:
                environment.step(name)
            except Exception as refusal:
                if re.search(step.refused, str(refusal)):
                    return
                raise
            raise Unexpected(f"line {step.line}: the run was not refused")


def _is_of(wrong: str, scenario: Scenario) -> bool:
    """Whether what names a Delta table by its path names one of the scenario's."""
    return f"/{TableName(scenario.name, 'x').path.split('/')[0]}/" in wrong


def _staged(environment: Environment) -> Lsn:
    with environment.ledger_connection() as connection:
        has_ledger = connection.execute("SELECT to_regclass('tidemark.generations') IS NOT NULL").fetchone()
        if not has_ledger or not has_ledger[0]:
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
    filtered: set[str] = field(default_factory=set)
    differing: set[str] = field(default_factory=set)
    staged_before: Lsn = field(default_factory=lambda: Lsn(0))
    refused: bool = False
    # What is to be done within the next step, by point; transactions that hang; whether the tables were backfilled.
    within: dict[str, list[Statement | Commit]] = field(default_factory=dict)
    hung: dict[str, HungCommit] = field(default_factory=dict)
    filled: bool = False

    def attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as failed:
            self.failed = failed

    def begin(self) -> None:
        name = self.scenario.name
        self.environment.execute(f'CREATE SCHEMA "{name}"', session=self._session("main"), search_path=name)
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
            if isinstance(act, ByHand):
                self._by_hand(act)
            elif isinstance(act, Pause):
                self._pause(act)
            elif isinstance(act, Statement | Commit):
                if act.at:
                    self.within.setdefault(act.at, []).append(act)
                else:
                    self._at_the_source(act)

    def fire(self, point: str) -> None:
        """Do, for once, what is to be done at this point of a step."""
        for act in self.within.pop(point, ()):
            self._at_the_source(act)

    def _at_the_source(self, act: Statement | Commit) -> None:
        session = self._session(act.session)
        try:
            if isinstance(act, Statement):
                self.environment.execute(act.sql, session=session, search_path=self.scenario.name)
            elif act.hangs:
                connection = self.environment.sessions[session]
                self.hung[act.session] = HungCommit(self.environment.source, (), connection)
            else:
                self.hung.pop(act.session).release()
        except Exception as failed:
            raise Unexpected(f"{self.scenario.name}.sql:{act.line}: {failed}") from failed

    def release_all(self) -> None:
        """What hangs would hang for ever."""
        for one in self.hung.values():
            one.release()
        self.hung.clear()

    def _by_hand(self, act: ByHand) -> None:
        def path(named: re.Match[str]) -> str:
            uri = judge.table_uri(self.environment, named[1], self._id(named[2]))
            return f"delta.`{uri}`"

        self.environment.spark().sql(re.sub(r"\{(current|history) (\w+)\}", path, act.sql)).collect()

    def _pause(self, act: Pause) -> None:
        table = self._id(act.table)
        with self.environment.ledger_connection() as connection:
            if act.ends:
                is_changed = merge_states.resume(connection, table)
            else:
                is_changed = merge_states.pause(connection, table, "somebody")
        assert is_changed, f"{self.scenario.name}.sql:{act.line}: nothing was done"

    def after_step(self) -> None:
        """Evaluate the expectations that follow, judge the tables after a run, go on at the source."""
        step = self.step
        assert step is not None
        self.refused = self.refused or step.refused is not None
        self.filled = self.filled or step.name == "end backfill" or "plan" not in {s.name for s in self.scenario.steps}
        if step.name != "plan":
            self.fire("horizon")  # if the plan waited for nothing, then while it was read
            for point in self.within:
                raise Unexpected(f"{self.scenario.name}.sql:{step.line}: nothing came to the point {point!r}")
        while self.at < len(self.scenario.acts) and isinstance(act := self.scenario.acts[self.at], Expectation):
            self.at += 1
            try:
                self.expect(act)
            except AssertionError as wrong:
                raise Unexpected(
                    f"{self.scenario.name}.sql:{act.line}: expected {act.kind} {act.table}: {wrong}"
                ) from wrong
        if step.name in ("verify", "repair"):
            self._nothing_else_differs()
        judged = step.name in JUDGED or (step.name == "retry" and step.crash_at.startswith(("merge.", "confirm.")))
        if judged and step.refused is None and self.filled and not self.hung:
            compared = sorted(set(self._captured()) - self.filtered)
            wrongs = judge.wrongs(self.environment, compared, self.excused)
            for table in self.filtered:
                wrongs += judge.history_leads_to_current(self.environment, table)
            if wrongs:
                raise Unexpected(f"after the step of {self.scenario.name}.sql:{step.line}:\n" + "\n".join(wrongs))
        self.excused -= self.differing
        self.differing.clear()
        self.advance()

    def _nothing_else_differs(self) -> None:
        """Of the tables that are right, each was compared, and nothing was found."""
        for table, verified in self.environment.report.verified.items():
            if TableName.parse(table).schema == self.scenario.name and table not in self.differing:
                wrong = verified.unproven if verified.unproven is not None else verified.outcome.differences
                if wrong:
                    raise Unexpected(f"{self.scenario.name}: the verify said {verified}")

    def _session(self, name: str) -> str:
        return f"{self.scenario.name} {name}"

    def _id(self, name: str) -> str:
        """The id of a table of the scenario; "item~2" is the second one of its name, "item~last" the last."""
        name, _, place = name.partition("~")
        if place == "last":
            places = (TableName.parse(table) for table in self._captured())
            place = str(max(one.place for one in places if one.name == name))
        return str(TableName(self.scenario.name, name, int(place or 1)))

    def _captured(self) -> dict[str, judge.TableRow]:
        return {
            table: row
            for table, row in judge.captured(self.environment).items()
            if TableName.parse(table).schema == self.scenario.name
        }

    # --- expectations --------------------------------------------------------------------------------------------

    def expect(self, expected: Expectation) -> None:
        table = self._id(expected.table)
        match expected.kind:
            case "history" | "current":
                self._rows(expected, table)
            case "no current":
                assert judge.read(self.environment, "current", table) is None, "there is one"
            case "columns":
                frame = judge.read(self.environment, "current", table)
                assert frame is not None, "there is no current table"
                columns = [f.name for f in frame.fields if f.name not in METADATA_COLUMNS]
                assert columns == split_columns(expected.detail), f"it has {columns}"
            case "tables":
                expected_tables = {self._id(name.strip()) for name in expected.table.split(",")}
                assert set(self._captured()) == expected_tables, f"captured are {sorted(self._captured())}"
            case "parked" | "paused" | "needs backfill" | "marked" | "merging":
                self._state(expected, table)
            case "filtered":
                self.filtered.add(table)
            case "report":
                self._report(expected, table)
            case "differs":
                self._differs(expected, table)
            case "backfill open":
                self._backfill_open(expected, table)
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
        delta = judge.read(self.environment, expected.kind, table)
        assert delta is not None, "there is no such Delta table"
        types = {field.name: field.dataType for field in delta.fields}
        columns = split_columns(expected.detail)

        def cells(row: Row) -> list[str]:
            return [_cell(column, types, row).strip() for column in columns]

        # Rows with one order key, such as a chunk's `read` rows, have no order among themselves: a scenario file lists
        # them sorted by the columns it names.
        rows_held, rows_expected = sorted(delta.rows(), key=cells), expected.rows
        if expected.kind == "history":
            rows_held = judge.in_order(rows_held)
        else:
            rows_expected = sorted(rows_expected)
        rows = [cells(row) for row in rows_held]
        same = len(rows) == len(rows_expected) and all(
            len(have) == len(want) and all(w in ("*", h) for h, w in zip(have, want, strict=True))
            for have, want in zip(rows, rows_expected, strict=True)
        )
        assert same, "it is\n" + "\n".join("    " + " | ".join(row) for row in rows)

    def _state(self, expected: Expectation, table: str) -> None:
        with self.environment.ledger_connection() as connection:
            row = judge.ledger_tables.one(connection, table)
        assert row is not None, "the ledger does not know the table"
        state = judge.marked(row)
        if expected.kind == "merging":
            assert state is None, f"it is {state}"
            self.excused.discard(table)
            return
        beginning = {"marked": ""}.get(expected.kind, expected.kind)
        assert state is not None, "it is merging"
        assert state.startswith(beginning), f"it is {state}"
        assert re.search(expected.detail, state), f"it is {state}"
        self.excused.add(table)

    def _report(self, expected: Expectation, table: str) -> None:
        report = self.environment.report.backfilled.get(table)
        assert report is not None, f"there is none; {self.environment.report.pending}"
        for condition in split_columns(expected.detail):
            name, count = condition.split("=")
            assert getattr(report, name) == int(count), f"it is {report}"

    def _differs(self, expected: Expectation, table: str) -> None:
        """What the verify found; the judge excuses the table, unless it is repaired."""
        report = self.environment.report.verified.get(table)
        assert report is not None, "it was not verified"
        for condition in split_columns(expected.detail):
            name, count = condition.split("=")
            assert getattr(report.outcome, name) == int(count), f"found was {report.outcome}"
        self.differing.add(table)
        if not report.repaired:
            self.excused.add(table)

    def _backfill_open(self, expected: Expectation, table: str) -> None:
        """Still open; the detail is why one of its chunks was rejected."""
        with self.environment.ledger_connection() as connection:
            rows = connection.execute(
                "SELECT c.rejected FROM tidemark.backfills b JOIN tidemark.chunks c USING (pipeline, backfill) "
                "WHERE b.state = 'open' AND b.\"table\" = %s",
                (table,),
            ).fetchall()
        assert any(re.search(expected.detail, reason) for (reason,) in rows if reason), f"its chunks are {rows}"
        self.excused.add(table)

    def _converted(self, table: str) -> str:
        with self.environment.ledger_connection() as connection:
            counts = unfit_values.all_of(connection).get(table, {})
        return ", ".join(f"{column}={count}" for column, count in counts.items())

    def _batches(self, expected: Expectation) -> None:
        with self.environment.ledger_connection() as connection:
            row = connection.execute(
                "SELECT count(DISTINCT start_lsn) FROM tidemark.batch_tables WHERE start_lsn >= %s",
                (self.staged_before,),
            ).fetchone()
        assert row is not None
        count = int(expected.table)
        assert row[0] == count or (expected.kind == "batches at least" and row[0] > count), f"there are {row[0]}"

    def _positions(self, kind: str) -> None:
        confirmed, staged = self.environment.confirmed_lsn(), self.environment.staged_lsn()
        assert confirmed is not None
        level = {
            "confirmed everything": confirmed == staged,
            "confirmed less than staged": confirmed < staged,
            "confirmed up to the batch before": self.staged_before == confirmed < staged,
        }[kind]
        assert level, f"confirmed is {confirmed}, staged {staged}, before this step staged {self.staged_before}"

    def _nowhere(self, needle: bytes) -> None:
        places = [
            str(path)
            for path in judge.lake_folder(self.environment).rglob("*")
            if path.is_file() and _holds(path, needle)
        ]
        assert not places, f"it stands in {places[:3]}"


def _holds(path: Path, needle: bytes) -> bool:
    if path.suffix != ".parquet":
        return needle in path.read_bytes()
    return needle.decode() in str(pq.read_table(path).to_pylist())


_EXPRESSION = re.compile(
    r"left\((?P<left>[^,]+), (?P<count>\d+)\)|length\((?P<length>[^,]+)\)"
    r"|(?P<map>\w+)\['(?P<key>.+)'\]|(?P<name>\w+)"
)


def _cell(expression: str, types: dict[str, T.DataType], row: Row) -> str:
    """A column, `_text['column']`, `left(…, 3)` or `length(…)` of either, as a scenario file writes it."""
    parsed = _EXPRESSION.fullmatch(expression)
    assert parsed is not None, f"{expression} is neither a column nor left(), length() or map['key']"
    if whole := parsed["left"] or parsed["length"]:
        text = _cell(whole, types, row)
        if text == "∅":
            return text
        return text[: int(parsed["count"])] if parsed["left"] else str(len(text))
    value = row[parsed["name"] or parsed["map"]]
    if value is None:
        return "∅"
    return dict(value).get(parsed["key"], "∅") if parsed["map"] else _as_text(value, types[parsed["name"]])


def _as_text(value: Any, kind: T.DataType) -> str:
    match kind:
        case T.TimestampType() | T.TimestampNTZType():
            return str(datetime(1970, 1, 1) + timedelta(microseconds=value))
        case T.DateType():
            return str(date(1970, 1, 1) + timedelta(days=value))
        case T.ArrayType(elementType=element):
            return " ".join("∅" if e is None else _as_text(e, element) for e in value)
    return str(value)
