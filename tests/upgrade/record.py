"""`python -m tests.upgrade.record`: let the older version live its day on servers of its own -> ledger_11/recorded/."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

import psycopg

from sandbox.services.postgres import running
from tests.upgrade.older_version import RECORDED, ROWS, live_a_day, save_rows


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, running(Path(scratch) / "server", 18, fsync="off") as server:
        folder = Path(scratch)
        with psycopg.connect(server.conninfo(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
            admin.execute("CREATE DATABASE ledger")
        ledger = server.conninfo("ledger")
        lake = folder / "lake"
        live_a_day(
            folder, source=server.conninfo("shop"), ledger=ledger, lake=str(lake), pipeline="upgraded", environment={}
        )
        RECORDED.mkdir(exist_ok=True)
        with psycopg.connect(ledger, autocommit=True) as connection:
            save_rows(connection, ROWS)
        for name in ("manifest.json", "plan.json", "result.json", "generation.json"):
            fullest = max(
                lake.rglob(name), key=lambda path: (path.read_text().count('"watermark_lsn"'), path.stat().st_size)
            )
            shutil.copy(fullest, RECORDED / name)
        for path in RECORDED.iterdir():
            path.write_text(path.read_text().replace(str(lake), "/lake").replace(socket.gethostname(), "worker"))


if __name__ == "__main__":
    main()
