"""What preflight passes, merges: whatever schemas, tables and columns are called; seeded.

Where a name cannot be stored, the table is left out with an error of its own, and no other table is kept from
anything. `make test` plays one seed with a few tables; `make simulation` many, with more of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from psycopg import sql

from tests.simulation import flow, names
from tests.support import judge
from tests.support.capture import Environment
from tidemark.config import TableRule
from tidemark.ledger.captured import table_errors
from tidemark.names import TableName

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
TABLES = 12 if "TIDEMARK_SIMULATION_SEEDS" in os.environ else 4


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_what_preflight_passes_merges(seed: int, new_environment: Callable[..., Environment]) -> None:
    random = Random(seed)
    environment = new_environment(f"names{seed}", (TableRule("*.*", line=1),))
    named_tables = names.tables(random, TABLES)
    for schema in sorted({table.schema for table in named_tables}):
        environment.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.Identifier(schema).as_string(None)}")
    for table in named_tables:
        environment.execute(table.create())
        environment.execute(table.insert(0))
    environment.execute("CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain VALUES (0)")
    environment.run()
    refused = _refused(environment)
    by_id = {str(TableName(table.schema, table.name)): table for table in named_tables}
    assert set(judge.captured(environment)) == {"public.plain", *by_id} - refused
    assert not refused & {table_id for table_id, table in by_id.items() if all(map(_is_ordinary, table.columns))}
    environment.backfill()  # of what is marked, which is all: each had a row
    for table in named_tables:
        for statement in (table.insert(1), table.insert(2), table.insert(3), table.update(1), table.move(2)):
            environment.execute(statement)
        environment.execute(table.delete(3))
    environment.run()
    for table in named_tables:
        environment.execute(table.delete(1))
        environment.execute(table.move(0))
    environment.run()
    wrong = judge.wrongs(environment)
    assert wrong == [], f"seed {seed}: {named_tables}"
    assert judge.second_run_changes_nothing(environment) == [], f"seed {seed}"
    for table_id, kinds in flow.of_tables(environment).items():
        if table_id in by_id:
            assert kinds["insert"] >= 3, table_id
            assert kinds["update"] >= 2, table_id
            assert kinds["delete"] == 2, table_id


def _refused(environment: Environment) -> set[str]:
    with environment.ledger_connection() as connection:
        return {error.table for error in table_errors.all_of(connection) if error.barred}


def _is_ordinary(column: str) -> bool:
    """No reason to refuse a table: an ASCII name of no meaning, alone in its case or not at all."""
    return column.isascii() and column.lower() == column and not column.startswith("_")
