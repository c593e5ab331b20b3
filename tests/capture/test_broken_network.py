"""Connections to source and ledger break in the middle of every task: each retry goes on, and every row is there once.

Tables are merged into lists of rows. `make test` plays one seed, `make faults` others for longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.definitions.capturing import Capture
from tests.support import broken_network
from tests.support.broken_network import WAYS, BrokenNetwork
from tests.support.pipeline import Pipeline, pipeline_config
from tests.support.thorough import seeds_of_faults
from tidemark.capture.merge_planning import ingest
from tidemark.config import TableRule
from tidemark.errors import LeaseTaken, Move, TidemarkError
from tidemark.postgres.postgres_session import outages

MOST_TRIES = 60
TABLES = ("shop.keyed", "shop.keyless")


@contextmanager
def broken(source: str, ledger: str, lake: Path, seed: int) -> Iterator[tuple[Capture, list[BrokenNetwork]]]:
    """A capture whose connections break, and its networks."""
    with ExitStack() as stack:
        networks, ways = [], []
        for number, conninfo in enumerate((source, ledger)):
            port = int(conninfo_to_dict(conninfo)["port"] or 0)
            network = stack.enter_context(broken_network.in_front_of(port, seed * 2 + number))
            networks.append(network)
            ways.append(make_conninfo(conninfo, host="127.0.0.1", port=network.port))
        pipeline = Pipeline(pipeline_config("broken", lake, (TableRule("shop.*"),)), *ways)
        stack.callback(pipeline.close)
        yield Capture(pipeline), networks


class Tasks:
    """Runs a task as Airflow does: it is tried again until it succeeds. `errors` counts what its failures were."""

    def __init__(self, capture: Capture, ledger: str) -> None:
        """`ledger` leads to the ledger by a sound network."""
        self.capture, self.pipeline, self.ledger = capture, capture.pipeline, ledger
        self.errors: Counter[str] = Counter()

    def run(self, number: int) -> None:
        self.attempt(lambda: self.pipeline.preflight().raise_for_errors())
        self.attempt(lambda: self.pipeline.drain(f"run-{number}"))
        self.attempt(self._merge)
        self.attempt(self.pipeline.confirm)

    def backfill(self, number: int, table: str) -> None:
        run_id = f"backfill-{number}"
        self.attempt(lambda: self.pipeline.plan(run_id, tables=(table,), replace=True))
        self.attempt(self.pipeline.read)

    def _merge(self) -> None:
        ingest(self.pipeline.task())
        assert not self.capture.lake.merge()

    def let_leases_expire(self) -> None:
        """As if a minute had passed: no task runs."""
        with psycopg.connect(self.ledger) as ledger:
            ledger.execute("UPDATE tidemark.leases SET expires_at = clock_timestamp() - interval '1 second'")

    def attempt(self, task: Callable[[], object]) -> None:
        for _ in range(MOST_TRIES):
            try:
                with outages():
                    task()
                return
            except TidemarkError as error:
                if error.move is not Move.RETRY:
                    raise
                self.errors[type(error).__name__] += 1
                if isinstance(error, LeaseTaken):  # of a task whose connection broke as it gave its lease back
                    self.let_leases_expire()
        pytest.fail(f"{MOST_TRIES} tries were not enough: {dict(self.errors)}")


def change_rows(pipeline: Pipeline, random: Random, number: int) -> None:
    first = number * 1000
    for table in TABLES:
        pipeline.execute(f"INSERT INTO {table} SELECT n, md5(n::text) FROM generate_series({first}, {first + 300}) n")
    lots = [random.randrange(first + 300) for _ in range(20)]
    for lot in lots:
        table = random.choice(TABLES)
        pipeline.execute(
            random.choice([f"UPDATE {table} SET v = 'u{number}'", f"DELETE FROM {table}"]) + f" WHERE id = {lot}"
        )
    pipeline.execute(f"UPDATE shop.keyed SET id = -id WHERE id = {first + 7}")


def play(direct: Pipeline, seed: int, runs: int) -> tuple[Counter[str], Counter[str]]:
    """Runs with broken connections; the errors of tasks and what was broken. Every table has to be equal at the end."""
    random = Random(seed)
    direct.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.keyed (id int PRIMARY KEY, v text)",
        "CREATE TABLE shop.keyless (id int, v text)",
        "ALTER TABLE shop.keyless REPLICA IDENTITY FULL",
        "INSERT INTO shop.keyed SELECT -n, 'old' FROM generate_series(1000000, 1000100) n",
    )
    with broken(direct.source, direct.ledger, Path(direct.config.lake), seed) as (capture, networks):
        direct.config = capture.pipeline.config
        tasks = Tasks(capture, direct.ledger)
        for number in range(runs):
            change_rows(direct, random, number)
            tasks.run(number)
            tasks.backfill(number, TABLES[number % 2])
        tasks.run(runs)
        judged = Capture(direct, replace(capture.lake, pipeline=direct))
        found = {table: judged.verdict(table, judged.known({})) for table in TABLES}
        assert {table: verdict.word for table, verdict in found.items()} == dict.fromkeys(TABLES, "equal"), found
        return tasks.errors, sum((network.broken for network in networks), Counter())


@pytest.mark.parametrize("seed", seeds_of_faults(2, 10))
def test_many_runs_whose_connections_break_lose_nothing(seed: int, pipeline: Pipeline) -> None:
    errors, ways = play(pipeline, seed, runs=25)
    print(f"errors {dict(errors)}, broken connections {dict(ways)}")
    assert min(ways[way] for way in WAYS) > 5


def test_runs_whose_connections_break_lose_nothing(pipeline: Pipeline) -> None:
    errors, ways = play(pipeline, seed=1, runs=4)
    assert errors.total() > 5
    assert set(ways) == set(WAYS)
