"""What `tidemark.lake` reads together is at every position a beginning of the source's commit order, whole transactions
in the order of their commits; and the definition of that finds each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.lake.consistent_sets import Committed, violations
from tests.lake.lists_and_registers import LEVELS, LISTS, REGISTERS, Workload
from tests.support import judge
from tests.support.capture import Environment
from tests.support.thorough import seeds_of_faults
from tidemark.config import TableRule
from tidemark.lake import Lake
from tidemark.lsn import Lsn

ORDER = [
    Committed(11, session=1, appended=frozenset({1, 2}), written=frozenset({1})),
    Committed(21, session=2, appended=frozenset({1}), written=frozenset({1, 2})),
    Committed(12, session=1, appended=frozenset({2}), written=frozenset()),
    Committed(22, session=2, appended=frozenset({1, 2}), written=frozenset({2})),
]
STATES = [
    ({1: [], 2: []}, {1: 0, 2: 0}),
    ({1: [11], 2: [11]}, {1: 11, 2: 0}),
    ({1: [11, 21], 2: [11]}, {1: 21, 2: 21}),
    ({1: [11, 21], 2: [11, 12]}, {1: 21, 2: 21}),
    ({1: [11, 21, 22], 2: [11, 12, 22]}, {1: 21, 2: 22}),
]


@pytest.mark.parametrize("state", STATES)
def test_each_beginning_of_the_order_is_a_state(state: tuple[dict[int, list[int]], dict[int, int]]) -> None:
    assert [*violations(ORDER, *state)] == []


@pytest.mark.parametrize(
    ("kind", "lists", "registers"),
    [
        ("never committed", {1: [11, 21, 31], 2: [11]}, {1: 21, 2: 21}),
        ("no prefix", {1: [11], 2: [11, 12]}, {1: 11, 2: 0}),
        ("a session's past is lost", {1: [11, 22], 2: [11, 22]}, {1: 11, 2: 22}),
        ("twice", {1: [11, 21, 21], 2: [11]}, {1: 21, 2: 21}),
        ("half a transaction", {1: [11], 2: []}, {1: 11, 2: 0}),
        ("half a transaction", {1: [11], 2: [11]}, {1: 21, 2: 21}),
        ("out of order", {1: [21, 11], 2: [11]}, {1: 21, 2: 21}),
        ("a write is lost", {1: [11, 21], 2: [11]}, {1: 21, 2: 0}),
        ("a write is lost", {1: [11, 21], 2: [11]}, {1: 11, 2: 21}),
    ],
)
def test_a_made_up_violation_is_found(kind: str, lists: dict[int, list[int]], registers: dict[int, int]) -> None:
    assert kind in [found for found, _ in violations(ORDER, lists, registers)]


def test_every_set_that_the_lake_reads_together_is_a_state_of_the_source(
    new_environment: Callable[..., Environment],
) -> None:
    every_set_is_a_state(new_environment, seed=1, sessions=6, runs=1, positions=8)


@pytest.mark.parametrize("seed", seeds_of_faults(1, 2))
def test_so_is_every_set_of_a_longer_play(seed: int, new_environment: Callable[..., Environment]) -> None:
    every_set_is_a_state(new_environment, seed, sessions=9, runs=6, positions=200)


def every_set_is_a_state(
    new_environment: Callable[..., Environment], seed: int, sessions: int, runs: int, positions: int
) -> None:
    environment = new_environment(f"lists{seed}", (TableRule("c.*"),), {"batch_rows": 20})
    environment.spark()  # sessions write for as long as a run takes, not for as long as a JVM takes to start
    workload = Workload(environment, seed)
    workload.create()
    environment.run()
    workload.begin()
    with workload.at_work(sessions):
        for _ in range(runs):
            environment.run()
        wait_for("every level, refusals and rollbacks", workload.is_worth_reading, 60)
    environment.run()
    order = workload.order()
    workload.close()
    assert len(order) == sum(count for (_, ended), count in workload.ended.items() if ended == "committed")
    lake = Lake(f"{environment.config.lake}/{environment.config.pipeline}", spark=environment.spark())
    wrongs = [
        f"{position}: {wrong}"
        for position in _positions(order, positions, Random(seed))
        for wrong in _wrongs(lake, order, position)
    ]
    assert wrongs == []


def test_what_each_isolation_level_lets_through_arrives_as_it_committed(
    new_environment: Callable[..., Environment],
) -> None:
    """A lost update and a write skew where PostgreSQL allows them, and never what was rolled back."""
    environment = new_environment("anomalies", (TableRule("c.*"),))
    environment.execute(f"CREATE SCHEMA c; CREATE TABLE {REGISTERS} (id int PRIMARY KEY, value int NOT NULL)")
    environment.run()
    environment.execute(f"INSERT INTO {REGISTERS} SELECT k, 0 FROM generate_series(1, 12) k")
    committed: dict[str, list[str]] = {}
    written: dict[int, list[int]] = {}
    for number, level in enumerate(LEVELS):
        lost, x, y, dirty = (4 * number + offset for offset in range(1, 5))
        one, other = (environment.session(f"{level.name} {name}") for name in ("one", "other"))
        committed[level.name] = []
        for name, writes in {"lost update": ((lost, 1), (lost, 2)), "write skew": ((x, 1), (y, 2))}.items():
            for session in (one, other):
                session.execute(f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}".encode())
                session.execute(f"SELECT * FROM {REGISTERS} WHERE id IN ({lost}, {x}, {y})".encode())
            ends = [_written(session, *write) for session, write in zip((one, other), writes, strict=True)]
            for (key, value), end in zip(writes, ends, strict=True):
                written.setdefault(key, []).extend([value] if end else [])
            committed[level.name] += [name] if all(ends) else []
        one.execute(f"BEGIN; UPDATE {REGISTERS} SET value = 1 WHERE id = {dirty}".encode())
        ((read,),) = other.execute(f"SELECT value FROM {REGISTERS} WHERE id = {dirty}".encode()).fetchall()
        one.execute("ROLLBACK")
        other.execute(f"UPDATE {REGISTERS} SET value = {read + 2} WHERE id = {dirty}".encode())
        written[dirty] = [2]
    assert committed == {
        "READ_COMMITTED": ["lost update", "write skew"],
        "REPEATABLE_READ": ["write skew"],
        "SERIALIZABLE": [],
    }
    environment.run()
    assert judge.wrongs(environment) == []
    lake = Lake(f"{environment.config.lake}/{environment.config.pipeline}", spark=environment.spark())
    updates = [row for row in lake.table(REGISTERS).history().collect() if row["_op"] == "update"]
    arrived: dict[int, list[int]] = {key: [] for key in written}
    for row in sorted(updates, key=lambda row: (row["_commit_lsn"], row["_ordinal"])):
        arrived[row["id"]].append(row["value"])
    assert arrived == written


def _written(session: psycopg.Connection[Any], key: int, value: int) -> bool:
    """Whether PostgreSQL let the transaction commit with it."""
    try:
        session.execute(f"UPDATE {REGISTERS} SET value = {value} WHERE id = {key}".encode())
        session.execute("COMMIT")
    except psycopg.errors.SerializationFailure:
        session.execute("ROLLBACK")
        return False
    return True


def _positions(order: list[tuple[Lsn, Committed]], count: int, random: Random) -> list[Lsn]:
    """Commits themselves, right behind them, and anywhere between."""
    commits = [lsn for lsn, _ in order]
    first, last = int(commits[0]), int(commits[-1])
    anywhere = [Lsn(random.randint(first, last)) for _ in range(count // 2)]
    at = [Lsn(int(random.choice(commits)) + random.choice([0, 1])) for _ in range(count - count // 2 - 1)]
    return [*anywhere, *at, Lsn(last + 1)]


def _wrongs(lake: Lake, order: list[tuple[Lsn, Committed]], position: Lsn) -> list[str]:
    together = lake.as_of(position, LISTS, REGISTERS)
    lists = {row["id"]: [*row["items"]] for row in together[LISTS].rows().collect()}
    registers = {row["id"]: row["value"] for row in together[REGISTERS].rows().collect()}
    seen = {number for items in lists.values() for number in items}
    below = {one.number for lsn, one in order if lsn < position}
    wrongs = [f"{kind}: {where}" for kind, where in violations([one for _, one in order], lists, registers)]
    return wrongs if seen == below else [*wrongs, f"other transactions than those below it: {sorted(seen ^ below)}"]
