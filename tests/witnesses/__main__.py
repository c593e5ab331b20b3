"""Plays the suites of a PostgreSQL source tree and writes the scoreboard: `make witnesses POSTGRES_SOURCE=…`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.peers import DEBEZIUM_VERSION, debezium
from benchmarks.pipeline import Refused
from sandbox.services.postgres import PostgresServer, running, wait_for
from sandbox.steps import end_by_exception
from tests.support import local_spark
from tests.support.capture import Environment
from tests.support.pipeline import pipeline_config
from tests.support.servers import OLDEST_AND_NEWEST
from tests.support.system_server import SystemServer
from tests.witnesses.captured_database import CapturedDatabase, DeltaTables, TableVerdict
from tests.witnesses.debezium.change_events import ChangeEvents
from tests.witnesses.debezium.debezium_database import MARKERS, DebeziumDatabase
from tests.witnesses.debezium.engine import Engine
from tests.witnesses.debezium.page_section import section
from tests.witnesses.decoding_suites import (
    EXCLUDED_DECODING,
    EXCLUDED_DECODING_SPECS,
    DecodingSpecsSuite,
    DecodingSuite,
)
from tests.witnesses.isolation_suite import EXCLUDED_SPECS, IsolationSuite
from tests.witnesses.regression_suite import EXCLUDED, RegressionSuite
from tests.witnesses.scoreboard import Play, SuiteResult, kept_in, kept_parts, merged, plays_in, write_plays
from tests.witnesses.scoreboard_page import page
from tests.witnesses.subscription_suite import EXCLUDED_SCRIPTS, SubscriptionSuite
from tests.witnesses.tables_of_rows import EnvironmentOfRows, TablesOfRows
from tidemark.config import PipelineConfig, TableRule
from tidemark.ledger import migrations

SERVER = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_prepared_transactions": "5"}
# With the little memory of PostgreSQL's own tests of it, decoding spills and streams transactions.
OF_DECODING = {**SERVER, "logical_decoding_work_mem": "64kB"}
SUITES = {  # with the files that are not played
    "regression": EXCLUDED,
    "isolation": EXCLUDED_SPECS,
    "subscription": EXCLUDED_SCRIPTS,
    "decoding": EXCLUDED_DECODING,
    "decoding-specs": EXCLUDED_DECODING_SPECS,
}
REPOSITORY = Path(__file__).resolve().parents[2]
DEBEZIUM = "debezium"
PEER = f"{DEBEZIUM} {DEBEZIUM_VERSION}"
KEPT = REPOSITORY / ".tidemark" / "witnesses"
PLAYS = REPOSITORY / "docs" / "witnesses.json"
PEER_PLAYS = REPOSITORY / "docs" / "witnesses-debezium.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files", nargs="*", help="names of tests, without .sql or .spec; without any: all, and the page"
    )
    parser.add_argument("--page", action="store_true", help="write the page of named files, too")
    parser.add_argument("--suite", choices=SUITES, action="append", help="which; all without any")
    parser.add_argument(
        "--version", type=int, default=18, help="the PostgreSQL server's: 15, of the system's packages, to 18"
    )
    parser.add_argument("--permutations", type=int, default=0, help="of a specification, at most; 0: all")
    parser.add_argument(
        "--beyond", type=int, default=0, help="such as 10: only permutations that `--permutations 10` does not play"
    )
    parser.add_argument(
        "--lake",
        choices=["delta", "rows", DEBEZIUM],
        default="delta",
        help="rows: lists, without Spark; debezium: Debezium's engine in the place of Tidemark",
    )
    parser.add_argument("--without-trigger", action="store_true", help="definitions are seen in the catalogue alone")
    parser.add_argument(
        "--part", default="1/1", help="such as 3/10: a tenth of the files, for several machines or turns"
    )
    parser.add_argument("--after", default="", help="go on behind this file: what an ended run kept stays")
    parser.add_argument("--pauses", type=int, default=3, help="drains between the statements of a script")
    parser.add_argument("--seed", type=int, default=0, help="where the drains between statements stand")
    arguments = parser.parse_args()
    tree = os.environ.get("POSTGRES_SOURCE", "")
    if not Path(tree, "src", "test", "regress", "sql").is_dir():
        print("No PostgreSQL source tree: name one by POSTGRES_SOURCE=/path/to/postgresql", file=sys.stderr)
        return 0
    end_by_exception()
    if (is_peer := arguments.lake == DEBEZIUM) and not _has_engine():
        return 0
    is_kept = arguments.page or not (arguments.files or arguments.beyond)
    folder_of_results = KEPT / DEBEZIUM if is_peer else KEPT
    faults, are_played = 0, False
    for suite in arguments.suite or SUITES:
        result = None  # stays so for a suite that has none of the named files
        with tempfile.TemporaryDirectory() as folder:
            for result in _play(suite, Path(folder), Path(tree).resolve(), arguments):
                if is_kept:
                    result.keep(folder_of_results)
        if result is None:
            continue
        are_played = True
        print(section([Play.of(result)], []) if is_peer else page([Play.of(result)], SUITES))
        faults += 0 if is_peer else result.outcomes["differs"] + result.outcomes["error"]
        if is_kept:
            file = PEER_PLAYS if is_peer else PLAYS
            write_plays(merged(plays_in(file), map(Play.of, kept_in(folder_of_results))), file)
            PLAYS.with_suffix(".md").write_text(written_page())
    if not are_played:
        print(f"No test is called {' or '.join(arguments.files)}", file=sys.stderr)
        return 2
    return 1 if faults else 0


def written_page() -> str:
    """The page of all plays that are kept. Of the engine's, those of its present version are shown."""
    ours = plays_in(PLAYS)
    return page(ours, SUITES, section([play for play in plays_in(PEER_PLAYS) if play.lake == PEER], ours))


def _has_engine() -> bool:
    try:
        debezium()
    except Refused as refused:
        print(f"{refused}: nothing was played", file=sys.stderr)
        return False
    return True


def _play(name: str, folder: Path, tree: Path, arguments: argparse.Namespace) -> Iterator[SuiteResult]:
    """What is known behind each group of files."""
    part = arguments.part
    lake = PEER if arguments.lake == DEBEZIUM else arguments.lake
    key = name, arguments.version, lake, not arguments.without_trigger, _chosen(arguments)
    if arguments.after:
        folder_of_results = KEPT / DEBEZIUM if lake == PEER else KEPT
        earlier = [one for one in kept_parts(folder_of_results) if one.key == key]
        part = f"{len(earlier) + 1}/{len(earlier) + 1}"
    with (
        running(
            folder / "source",
            arguments.version,
            SystemServer if arguments.version < OLDEST_AND_NEWEST[0] else PostgresServer,
            **(SERVER if name in ("regression", "isolation") else OF_DECODING),
        ) as server,
        running(folder / "ledger", 18, **SERVER) as ledger_server,
    ):
        source, ledger = _database(server, "regression"), _database(ledger_server, "ledger")
        migrations.migrate(ledger)
        # A test's own sessions may hold a lock, or a transaction open, for as long as a chunk waits.
        bounds = {"drain_stall_s": 120, "lock_timeout_s": 2, "join_wait_s": 2}
        # Some isolation tests make a schema of their own, which their publication does not have.
        managed = {"manage_publication": name not in ("isolation", "decoding-specs")}
        config = pipeline_config("witness", folder / "lake", (TableRule("*.*"),), bounds, **managed)
        has_trigger = not arguments.without_trigger
        place = (config, source, ledger)
        with _captured(place, folder, arguments.lake, server) as database:
            psql = server.binary("psql")
            suite: RegressionSuite | IsolationSuite | SubscriptionSuite
            if name == "subscription":
                suite = SubscriptionSuite(tree, database, psql, has_trigger)
            elif name in ("regression", "decoding"):
                kind = RegressionSuite if name == "regression" else DecodingSuite
                suite = kind(tree, database, psql, arguments.seed, has_trigger, arguments.pauses)
            else:
                of_specs = IsolationSuite if name == "isolation" else DecodingSpecsSuite
                drawn = arguments.seed, arguments.permutations, has_trigger, arguments.beyond
                suite = of_specs(tree, database, *drawn)
            verdicts: list[TableVerdict] = []
            played: list[str] = []
            suite.set_up()
            chosen = arguments.files
            if arguments.after:
                chosen = suite.files()[suite.files().index(arguments.after) + 1 :]
            for files in _part(list(suite.groups(chosen)), arguments.part):
                played += files
                verdicts += _shown(files, list(_played(suite, files)))
                about = (name, arguments.version, lake, part)
                yield SuiteResult(*about, played, verdicts, suite.covered(), *key[-2:])


@contextmanager
def _captured(
    place: tuple[PipelineConfig, str, str], folder: Path, lake: str, server: PostgresServer
) -> Iterator[CapturedDatabase]:
    """A database whose lake is of Delta tables, or of lists of rows; or one that Debezium's engine reads."""
    if lake == "rows":
        without_spark = EnvironmentOfRows(*place, folder, lambda: None)  # type: ignore[arg-type, return-value]
        try:
            yield CapturedDatabase(without_spark, TablesOfRows(without_spark))
        finally:
            without_spark.close()
        return
    if lake == DEBEZIUM:
        without_tidemark = EnvironmentOfRows(*place, folder, lambda: None)  # type: ignore[arg-type, return-value]
        reading = Engine(debezium(), server, "regression", folder, ChangeEvents(MARKERS))
        try:
            yield DebeziumDatabase(without_tidemark, TablesOfRows(without_tidemark), engine=reading)
        finally:
            reading.stop()
            without_tidemark.close()
        return
    spark = local_spark.start(folder / "spark")
    environment = Environment(*place, folder, lambda: spark)
    try:
        yield CapturedDatabase(environment, DeltaTables(environment))
    finally:
        environment.close()
        spark.stop()


def _chosen(arguments: argparse.Namespace) -> str:
    """Which files, and which of their permutations, in the words of the page; "" for all."""
    files = ", ".join(arguments.files)
    beyond = f"permutations that `--permutations {arguments.beyond}` does not play" if arguments.beyond else ""
    return f"{files}: {beyond}" if files and beyond else files or beyond


def _part(groups: list[list[str]], part: str) -> list[list[str]]:
    number, of = map(int, part.split("/"))
    return groups[len(groups) * (number - 1) // of : len(groups) * number // of]


def _played(suite: RegressionSuite | IsolationSuite | SubscriptionSuite, files: list[str]) -> Iterator[TableVerdict]:
    """A file that loses the server costs no other one."""
    try:
        yield from suite.play(files)
    except psycopg.OperationalError as error:
        yield TableVerdict(files[-1], "(the server)", "error", str(error))
        wait_for("the server is back", lambda: suite.database.run() is None, 60)


def _shown(files: list[str], verdicts: list[TableVerdict]) -> list[TableVerdict]:
    for file in files:
        of_file = [verdict for verdict in verdicts if verdict.file == file]
        counts = Counter(verdict.outcome for verdict in of_file)
        print(f"{file}: {', '.join(f'{n} {outcome}' for outcome, n in sorted(counts.items()))}", flush=True)
        for verdict in of_file:
            if verdict.outcome not in ("equal", "repaired", "dropped"):
                print(f"    {verdict.table}: {verdict.outcome}: {verdict.reason[:300]}", flush=True)
    return verdicts


def _database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'".encode())
    return server.conninfo(name)


if __name__ == "__main__":
    sys.exit(main())
