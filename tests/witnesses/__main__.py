"""Plays the suites of a PostgreSQL source tree and prints the scoreboard: `make witnesses POSTGRES_SOURCE=…`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psycopg

from sandbox.services.postgres import PostgresServer, running
from tests.support import local_spark
from tests.support.capture import Environment
from tests.support.pipeline import pipeline_config
from tests.witnesses.regression_suite import RegressionSuite, TableVerdict
from tests.witnesses.scoreboard import scoreboard
from tidemark.config import TableRule
from tidemark.ledger import migrations

SERVER = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_prepared_transactions": "5"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="names of regression tests, without .sql; all of them without any")
    parser.add_argument("--version", type=int, default=18, help="the PostgreSQL server's: 16 or 18")
    parser.add_argument("--seed", type=int, default=0, help="where the drains between statements stand")
    parser.add_argument("--page", type=Path, help="where the scoreboard is written, as Markdown")
    arguments = parser.parse_args()
    tree = os.environ.get("POSTGRES_SOURCE", "")
    if not Path(tree, "src", "test", "regress", "sql").is_dir():
        print("No PostgreSQL source tree: name one by POSTGRES_SOURCE=/path/to/postgresql", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        verdicts = _play(Path(folder), Path(tree).resolve(), arguments)
    page = scoreboard(verdicts, arguments.version)
    print(page)
    if arguments.page is not None:
        arguments.page.write_text(page)
    counts = Counter(verdict.outcome for verdict in verdicts)
    return 1 if counts["differs"] or counts["error"] else 0


def _play(folder: Path, tree: Path, arguments: argparse.Namespace) -> list[TableVerdict]:
    with (
        running(folder / "source", arguments.version, **SERVER) as server,
        running(folder / "ledger", 18, **SERVER) as ledger_server,
    ):
        source, ledger = _database(server, "regression"), _database(ledger_server, "ledger")
        migrations.migrate(ledger)
        lake = folder / "lake"
        config = pipeline_config("witness", lake, (TableRule("*.*"),), {"drain_stall_s": 120, "lock_timeout_s": 5})
        spark = local_spark.start(folder / "spark")
        environment = Environment(config, source, ledger, folder, lambda: spark)
        suite = RegressionSuite(tree, environment, server.binary("psql"), arguments.seed)
        suite.set_up()
        verdicts: list[TableVerdict] = []
        try:
            for name in suite.files(arguments.files):
                of_file = list(suite.play(name))
                counts = Counter(verdict.outcome for verdict in of_file)
                print(f"{name}: {', '.join(f'{n} {outcome}' for outcome, n in sorted(counts.items()))}", flush=True)
                for verdict in of_file:
                    if verdict.outcome != "equal":
                        print(f"    {verdict.table}: {verdict.outcome}: {verdict.reason[:300]}", flush=True)
                verdicts += of_file
        finally:
            environment.close()
            spark.stop()
        return verdicts


def _database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'".encode())
    return server.conninfo(name)


if __name__ == "__main__":
    sys.exit(main())
