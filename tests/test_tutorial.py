"""docs/tutorial.md, followed to the letter: its files and commands, in a new environment with the built wheels."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sandbox.checkout import this_checkout
from sandbox.release.distributions import build
from sandbox.services.postgres import PostgresServer, free_port
from tests.unit.test_architecture import REPOSITORY

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text()
SECOND_TERMINAL = "second terminal"
# A fence without a title is typed, one with a title is a file of that name, `text` is only read.
FENCES = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
ROWS = "SELECT id, customer, ordered_on::text, status, total::text FROM {} ORDER BY id"
READ = f"""
from deltalake import DeltaTable, QueryBuilder
orders = DeltaTable("lake/shop/current/shop/orders")
read = QueryBuilder().register("orders", orders).execute({ROWS.format("orders")!r}).read_all()
for row in zip(*(column.to_pylist() for column in read.columns)):
    print(row)
"""
PATIENCE_S = 2400


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    title: str
    text: str


BLOCKS = [Block(*found) for found in FENCES.findall(PAGE) if found[0] != "text"]


@pytest.fixture
def terminal(postgres: PostgresServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who has what the page asks for, and nothing of this checkout."""
    there = conninfo_to_dict(postgres.conninfo())
    checkout, port = this_checkout(), free_port()
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TIDEMARK", "SPARK"))}
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        mine.pop(name, None)
    path = [part for part in os.environ["PATH"].split(os.pathsep) if not part.startswith(str(checkout.venv))]
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "psql").symlink_to(postgres.binary("psql"))
    java = {"JAVA_HOME": str(checkout.java_home)} if checkout.java_home else {}
    yield {
        **mine,
        **java,
        "PATH": os.pathsep.join([str(tools), *path]),
        "PGHOST": there["host"],
        "PGPORT": str(there["port"]),
        "PGUSER": there["user"],
        "PGPASSWORD": there["password"],
        # The page's port may be taken here.
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        for database in ("shop", "ledger", "airflow"):
            connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        connection.execute("DROP ROLE IF EXISTS tidemark, shop_owner")


@pytest.mark.thorough
def test_the_tutorial_leads_from_pip_to_a_chart(
    terminal: dict[str, str], postgres: PostgresServer, tmp_path: Path
) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    build(this_checkout(), folder / "dist")
    script, second = [], []
    for block in BLOCKS:
        if block.title == SECOND_TERMINAL:
            (folder / "second.sh").write_text(f"set -e\n{block.text}")
            second.append(block)
            script.append("setsid bash second.sh > airflow.log 2>&1 &\necho $! > second.pid\n")
        elif block.title:
            script.append(f"cat > {block.title} <<'END OF FILE'\n{block.text}END OF FILE\n")
        else:
            assert block.language == "sh", f"nobody runs this: {block.text}"
            script.append(block.text)
    assert len(second) == 1, "the page starts Airflow once"
    # Airflow is stopped before the slot is dropped, as the page has it.
    script.insert(-1, 'kill -TERM -- "-$(cat second.pid)"\nwait || true\n')
    (folder / "first.sh").write_text("set -e\n" + "".join(script))
    with (folder / "output.log").open("w") as output:
        process = subprocess.Popen(
            ["bash", "-x", "first.sh"], cwd=folder, env=terminal, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            groups = (
                [process.pid, *map(int, (folder / "second.pid").read_text().split())]
                if (folder / "second.pid").exists()
                else [process.pid]
            )
            for group in groups:
                try:
                    os.killpg(group, signal.SIGKILL)
                except ProcessLookupError:
                    continue
    assert code == 0, (folder / "output.log").read_text()[-6000:]

    assert (folder / "chart.png").read_bytes().startswith(b"\x89PNG")
    with psycopg.connect(postgres.conninfo("shop")) as connection:
        rows = connection.execute(ROWS.format("shop.orders")).fetchall()
        assert connection.execute("SELECT count(*) FROM pg_replication_slots WHERE database = 'shop'").fetchone() == (
            0,
        )
    assert len(rows) == 10_000
    in_delta = subprocess.run(
        [folder / "environment" / "bin" / "python", "-c", READ], cwd=folder, env=terminal, capture_output=True
    )
    assert in_delta.stdout.decode().splitlines() == [str(row) for row in rows], in_delta.stderr.decode()
    shutil.rmtree(folder)
