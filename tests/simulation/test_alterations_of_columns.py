"""Columns come, go, swap and take each other's names at random, beside changes and drains; seeded, and without Spark.

Every value says which column of the source it was written to. So whatever the stream, the catalogue and the order of
both made of it, each staged value stands under the number that it names, as a merge reads it. Where there is no number,
the table is marked; no table is ever parked. `make test` plays one seed; `make simulation`
many."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pyarrow.parquet as pq
import pytest

from tests.support.pipeline import Pipeline
from tidemark.ledger.captured import tables

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "4"))  # of the first ones the one that catches most
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
TABLES, ROUNDS = 6, 5
NAMES = ("a", "b", "c", "a__2")
ENOUGH = 5

met: Counter[str] = Counter()  # of the plays of this session


class Altered:
    """One table of the source: `columns` are the names of its columns by number."""

    def __init__(self, rng: Random, pipeline: Pipeline, name: str) -> None:
        self.rng = rng
        self.pipeline = pipeline
        self.name = name
        self.rows = 0
        self.columns = {2: "a", 3: "b"}
        self.newest = 3
        pipeline.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a text, b text)")

    def act(self) -> None:
        free = [name for name in NAMES if name not in self.columns.values()]
        acts = {"write": 6, "add": 2 * bool(free), "drop": 2, "rename": 2 * bool(free), "swap": 1, "replace": 2}
        act = self.rng.choices(list(acts), list(acts.values()))[0]
        met[act] += 1
        if act == "write" or not self.columns:
            self.write()
        elif act == "add":
            self.add(self.rng.choice(free))
        elif act == "drop":
            self.alter(f"DROP COLUMN {self.columns.pop(self.rng.choice(list(self.columns)))}")
        elif act == "rename":
            number = self.rng.choice(list(self.columns))
            old, self.columns[number] = self.columns[number], self.rng.choice(free)
            self.alter(f"RENAME COLUMN {old} TO {self.columns[number]}")
        elif act == "swap" and len(self.columns) > 1:
            one, other = self.rng.sample(list(self.columns), 2)
            self.alter(f"RENAME COLUMN {self.columns[one]} TO x", f"RENAME COLUMN {self.columns[other]} TO y")
            self.columns[one], self.columns[other] = self.columns[other], self.columns[one]
            self.alter(f"RENAME COLUMN x TO {self.columns[one]}", f"RENAME COLUMN y TO {self.columns[other]}")
        elif act == "replace":
            name = self.columns.pop(self.rng.choice(list(self.columns)))
            self.alter(f"DROP COLUMN {name}")
            if self.rng.random() < 0.5:
                self.write()
            self.add(name)

    def add(self, name: str) -> None:
        self.newest += 1
        self.columns[self.newest] = name
        default = f" DEFAULT '{self.newest}:d'" if self.rng.random() < 0.3 else ""
        self.alter(f"ADD COLUMN {name} text{default}")

    def alter(self, *what: str) -> None:
        self.pipeline.execute(*[f"ALTER TABLE {self.name} {one}" for one in what])

    def write(self) -> None:
        """A value in every column."""
        self.rows += 1
        names = ", ".join(["id", *self.columns.values()])
        values = ", ".join([str(self.rows), *(f"'{number}:{self.rows}'" for number in self.columns)])
        self.pipeline.execute(f"INSERT INTO {self.name} ({names}) VALUES ({values})")


@pytest.mark.parametrize("seed", SEEDS)
def test_every_staged_value_stands_under_the_column_that_it_was_written_to(seed: int, pipeline: Pipeline) -> None:
    rng = Random(seed)
    altered = [Altered(rng, pipeline, f"t{n}") for n in range(TABLES)]
    pipeline.begin()
    for table in altered:
        table.write()
    pipeline.drain()
    for _ in range(ROUNDS):
        for _ in range(rng.randint(4, 16)):
            rng.choice(altered).act()
        pipeline.drain()
    for table in altered:
        table.write()
    pipeline.drain()
    placed, rows = 0, 0
    versions = {}
    with pipeline.ledger_connection() as ledger:
        for table_id, of_table in tables.versions_of(ledger, None).items():
            versions.update({(table_id, schema.version): schema for schema in of_table})
    for manifest in pipeline.manifests():
        for changed in manifest.tables:
            for file in changed.files:
                schema = versions[changed.table, file.schema_version]
                values = pq.read_table(f"{pipeline.config.lake}/{file.path}").to_pylist()
                if not values:
                    continue  # It brings a definition that no change shows.
                rows += len(values)
                if not schema.published:
                    # Another table follows, which is built anew; until then this one says so.
                    assert pipeline.table_row(changed.table).life.needs_backfill
                    continue
                placed += len(values)
                for column in [c for c in schema.columns[1:] if c.name in values[0]]:
                    said = {str(row[column.name]).partition(":")[0] for row in values}
                    assert said == {str(column.attnum)}, f"seed {seed}: {changed.table} version {schema.version}"
    assert rows == sum(table.rows for table in altered)
    assert not [table for table, row in pipeline.table_rows().items() if row.life.is_parked]
    assert placed > rows * 0.6, f"seed {seed}: {placed} of {rows}"
    met["plays"] += 1


@pytest.mark.thorough
def test_the_plays_before_altered_columns_in_every_way() -> None:
    assert {*met} >= {"write", "add", "drop", "rename", "swap", "replace"} or met["plays"] < ENOUGH
