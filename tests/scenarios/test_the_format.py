"""The scenario format itself, and its judge: a typing error is no comment, and what is wrong is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import failpoint_names, judge, scenario
from tests.support.capture import Environment
from tests.support.playing import Unexpected, play
from tidemark.config import TableRule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- A\nSELECT 1;\n-- step: rum", "unknown step 'rum'"),
        ("-- A\n-- step: run\n-- expect: histroy t (a)", "unknown expectation"),
        ("-- A\n-- step: crash at merge.after_histroy", "unknown failpoint 'merge.after_histroy'"),
        ("-- A\n-- step: run\n-- step: retry", "a retry of no task"),
        ("-- A\n-- step run\n", "neither a comment nor a directive"),
        ("-- A\n-- at: hihg note\n-- step: read", "unknown point 'hihg note'"),
        ("-- A\n-- step: run\nSELECT 1", "does not end"),
        ("-- A\nSELECT 1;", "without a step"),
        ("-- step: run", "without a first line"),
        ("-- A\n-- step: run\n--   insert | 1", "a row without an expectation"),
    ],
)
def test_a_typing_error_is_no_comment(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.sql"
    file.write_text(text)
    with pytest.raises(scenario.NotAScenario, match=message):
        scenario.read(file)


def test_the_grammar_in_the_readme_knows_every_step_and_expectation() -> None:
    grammar = (Path(__file__).parent / "README.md").read_text()
    directives = [line.split("|")[1] for line in grammar.splitlines() if line.startswith("| `-- ")]
    steps = " ".join(text for text in directives if "-- step:" in text)
    expectations = " ".join(text for text in directives if "-- expect:" in text)
    assert [step for step in (*scenario.STEPS, scenario.CRASH) if f"{step.strip()}" not in steps] == []
    assert [kind for kind in scenario.EXPECTATIONS if kind not in expectations] == []


def test_one_scenario_kills_a_task_at_every_failpoint_of_capture() -> None:
    killed = scenario.read(Path(__file__).parent / "killed_at_every_step.sql")
    assert killed.crashes == list(failpoint_names.OF_CAPTURE)


def test_a_statement_ends_where_its_block_does(tmp_path: Path) -> None:
    file = tmp_path / "block.sql"
    file.write_text("-- A\nDO $$\nBEGIN\n  PERFORM 1;\nEND $$;\n-- session: b\nSELECT\n  2;\n-- step: run\n")
    statements = [act for act in scenario.read(file).acts if isinstance(act, scenario.Statement)]
    assert [(s.line, s.session, s.sql.count("\n")) for s in statements] == [(2, "main", 3), (7, "b", 1)]


def test_columns_are_split_outside_of_brackets_and_quotes() -> None:
    assert scenario.split_columns("_op, left(body, 2), _text['a,b'], `x,y`") == [
        "_op",
        "left(body, 2)",
        "_text['a,b']",
        "`x,y`",
    ]


@pytest.fixture(scope="module")
def captured(new_environment: Callable[..., Environment]) -> Environment:
    environment = new_environment("judged", (TableRule("judged.*"),))
    for statement in (
        "CREATE SCHEMA judged",
        "CREATE TABLE judged.item (id int PRIMARY KEY, name text)",
        "CREATE TABLE judged.bag (name text)",
        "ALTER TABLE judged.bag REPLICA IDENTITY FULL",
    ):
        environment.execute(statement)
    environment.run()
    environment.execute("INSERT INTO judged.item VALUES (1, 'a'), (2, 'b')")
    environment.execute("INSERT INTO judged.bag VALUES ('x'), ('x')")
    environment.run()
    assert judge.wrongs(environment) == []
    return environment


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("item", "UPDATE delta.`{current}` SET name = NULL WHERE id = 1"),
        ("item", "DELETE FROM delta.`{current}` WHERE id = 1"),
        ("item", "INSERT INTO delta.`{current}` SELECT * FROM delta.`{current}` WHERE id = 1"),
        ("bag", "INSERT INTO delta.`{current}` SELECT * FROM delta.`{current}` LIMIT 1"),
        ("item", "INSERT INTO delta.`{history}` SELECT * FROM delta.`{history}` WHERE id = 1"),
        ("item", "DELETE FROM delta.`{history}` WHERE id = 1"),
        ("bag", "UPDATE delta.`{history}` SET _ordinal = 0"),
    ],
)
def test_the_judge_finds_what_somebody_changed(table: str, statement: str, captured: Environment) -> None:
    name = f"judged.{table}"
    changed = "history" if "{history}" in statement else "current"
    path = judge.table_uri(captured, changed, name)
    before = judge.read(captured, changed, name)
    assert before is not None
    spark = captured.spark()
    spark.sql(statement.format(**{changed: path})).collect()
    try:
        assert judge.wrongs(captured, [name]) != []
    finally:
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {before.version}").collect()
    assert judge.wrongs(captured, [name]) == []


UNTRUE = (
    "current item (id, name)\n--   1 | a",
    "history item (_op)\n--   insert",
    "history item (_op)\n--   insert\n--   delete",
    "parked item ()",
    "needs backfill item ()",
    "no current item",
    "tables other",
    "batches 2",
    "confirmed less than staged",
    "spark not started",
    "columns item (id)",
    "converted item (id=1)",
    "nowhere in the lake (needle)",
)


@pytest.fixture(scope="module")
def outcomes(captured: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseException | None]:
    """What became of one scenario for each expectation of UNTRUE; they go through the same runs."""
    folder = tmp_path_factory.mktemp("untrue")
    scenarios = []
    for number, expectation in enumerate(UNTRUE):
        file = folder / f"expectation_{number}.sql"
        file.write_text(
            "-- A\nCREATE TABLE item (id int PRIMARY KEY, name text);\n-- step: run\n"
            f"INSERT INTO item VALUES (1, 'needle'), (2, 'b');\n-- step: run\n-- expect: {expectation}\n"
        )
        scenarios.append(scenario.read(file))
        captured.config = _with_schema(captured, file.stem)
    return play(captured, scenarios)


@pytest.mark.parametrize("expectation", UNTRUE)
def test_an_expectation_that_does_not_hold_fails_its_scenario(
    expectation: str, outcomes: dict[str, BaseException | None]
) -> None:
    name = f"expectation_{UNTRUE.index(expectation)}"
    outcome = outcomes[name]
    assert isinstance(outcome, Unexpected), outcome
    assert f"{name}.sql:6" in str(outcome)


def _with_schema(environment: Environment, schema: str):  # type: ignore[no-untyped-def]
    import dataclasses

    return dataclasses.replace(environment.config, tables=(*environment.config.tables, TableRule(f"{schema}.*")))
