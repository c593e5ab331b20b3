"""What the source was at some moments, copied there and then, is what `tidemark.lake` says of them at the end, whatever
died in between: tables of every identity, TOAST, changes of keys, truncates."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sandbox.checks.comparison import compare_rows
from tests.simulation.flow import Met
from tests.simulation.test_simulation import SEEDS, _attempt
from tests.simulation.workload import SCHEMA, TABLES, Workload, create
from tests.support import delta_files
from tests.support.capture import Environment
from tidemark.errors import MomentBeforeHistory, TableNotInLake
from tidemark.lake import Lake
from tidemark.lsn import Lsn

NAMES = [rule.pattern.partition(".")[2] for rule in TABLES]

met = Met()  # by the plays of this session


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_the_lake_tells_what_the_source_was_when_somebody_looked(
    seed: int, new_environment: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    environment = new_environment(f"moments{seed}", TABLES, {"batch_rows": random.choice([1, 40, 1_000_000])})
    create(environment)
    workload = Workload(environment, random)
    moments: dict[str, Lsn] = {}
    acts: list[str] = []
    try:
        for number in range(6):
            workload.some(random.randint(5, 25))
            if number in (1, 4):
                workload.settle()
                moments[f"seen_{number}"] = _copied(environment, f"seen_{number}")
            acts.append(_attempt(environment, random, monkeypatch))
    finally:
        workload.settle()
    environment.let_leases_end()
    environment.run()
    for schema, moment in moments.items():
        wrongs = [wrong for name in NAMES if (wrong := _wrong(environment, schema, name, moment))]
        assert wrongs == [], f"seed {seed}, acts {acts}"
    met.add(environment)


@pytest.mark.thorough
def test_the_plays_before_brought_changes_of_every_kind() -> None:
    assert met.missing() == {}


def _copied(environment: Environment, schema: str) -> Lsn:
    """The tables as they are, beside them; nobody commits meanwhile. Returns the position that shows them."""
    ((lsn,),) = environment.query("SELECT pg_current_wal_insert_lsn()::text")
    environment.execute(f"CREATE SCHEMA {schema}")
    for name in NAMES:
        environment.execute(f"CREATE TABLE {schema}.{name} AS SELECT * FROM {SCHEMA}.{name}")
    return Lsn.parse(lsn)


def _wrong(environment: Environment, schema: str, name: str, moment: Lsn) -> str:
    lake = Lake(f"{environment.config.lake}/{environment.config.pipeline}", spark=environment.spark())
    try:
        frame = lake.table(f"{SCHEMA}.{name}").as_of(moment).rows()
    except (TableNotInLake, MomentBeforeHistory):
        frame = None  # nothing had ever happened to it
    rows = None if frame is None else frame.toArrow()
    compared = compare_rows(
        source=environment.source,
        table=f"{schema}.{name}",
        fields=None if frame is None else frame.schema.fields,
        rows=lambda fields: (
            [] if rows is None else list(zip(*[delta_files.values(rows, field) for field in fields], strict=True))
        ),
    )
    return "" if compared.equal else f"{name} as of {moment}: {[str(example) for example in compared.examples]}"
