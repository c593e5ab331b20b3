"""An older version's code, at work on the databases and the lake of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psycopg
from psycopg import sql

from tidemark.ledger import migrations

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
LEDGER_11 = HERE / "ledger_11"
RECORDED = LEDGER_11 / "recorded"
ROWS = RECORDED / "ledger.copy"


def live_a_day(
    folder: Path, *, source: str, ledger: str, lake: str, pipeline: str, environment: Mapping[str, str]
) -> None:
    """Let the older version work for a day, in a process of its own; `environment` may name a JVM for its driver."""
    code = folder / "code"
    with zipfile.ZipFile(LEDGER_11 / "code.zip") as archive:
        archive.extractall(code)
    where = folder / "day.json"
    where.write_text(
        json.dumps(
            {"source": source, "ledger": ledger, "lake": lake, "pipeline": pipeline, "scratch": str(folder / "scratch")}
        )
    )
    paths = [code / "include", code, REPOSITORY, REPOSITORY / "include"]
    day = subprocess.run(
        [sys.executable, str(LEDGER_11 / "day.py"), str(where)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if day.returncode != 0:
        raise AssertionError(f"the older version ended with {day.returncode}:\n{day.stdout[-4000:]}")


@contextmanager
def migrations_up_to(number: int) -> Iterator[None]:
    """As if this version knew no later migration."""
    scripts = [script for script in migrations._scripts() if script[0] <= number]
    with patch.object(migrations, "_scripts", lambda: scripts):
        yield


def tables_of(ledger: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'tidemark' AND tablename <> 'schema_migrations'"
    return sorted(str(name) for (name,) in ledger.execute(query))


def columns_of(ledger: psycopg.Connection[tuple[object, ...]], table: str) -> list[str]:
    query = """SELECT attname FROM pg_attribute
                WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
                ORDER BY attnum"""
    return [str(name) for (name,) in ledger.execute(query, (f'tidemark."{table}"',))]


def _copied(table: str, columns: list[str]) -> sql.Composed:
    return sql.SQL("tidemark.{} ({})").format(
        sql.Identifier(table), sql.SQL(", ").join(sql.Identifier(column) for column in columns)
    )


def save_rows(ledger: psycopg.Connection[tuple[object, ...]], path: Path) -> None:
    """Every row of the ledger, as COPY writes them."""
    pieces: list[bytes] = []
    for table in tables_of(ledger):
        columns = columns_of(ledger, table)
        with ledger.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(_copied(table, columns))) as copy:
            rows = b"".join(bytes(block) for block in copy)
        if rows:
            pieces.append(f"{table} {' '.join(columns)}\n".encode() + rows + b"\\.\n")
    path.write_bytes(b"".join(pieces))


def load_rows(ledger: psycopg.Connection[tuple[object, ...]], path: Path = ROWS) -> None:
    """Into a ledger of the version that they are of."""
    with ledger.transaction():
        ledger.execute("SET LOCAL session_replication_role = replica")  # in any order: they refer to each other
        for piece in path.read_bytes().split(b"\\.\n")[:-1]:
            head, _, rows = piece.partition(b"\n")
            table, *columns = head.decode().split(" ")
            with ledger.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(_copied(table, columns))) as copy:
                copy.write(rows)
