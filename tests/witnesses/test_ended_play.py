"""A play of the witnesses that somebody ends stops its servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.unit.test_architecture import REPOSITORY


@pytest.mark.some(1)
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_play_that_is_ended_stops_its_servers(told: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "src" / "test" / "regress" / "sql").mkdir(parents=True)
    scripts = tmp_path / "contrib" / "test_decoding" / "sql"
    scripts.mkdir(parents=True)
    (scripts / "endless.sql").write_text(f"\\! touch {tmp_path}/began\nSELECT pg_sleep(600);\n")
    places = tmp_path / "tmp"
    places.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.witnesses", "--suite", "decoding", "--lake", "rows", "endless"],
        cwd=REPOSITORY,
        env={**os.environ, "POSTGRES_SOURCE": str(tmp_path), "TMPDIR": str(places), "PYTHONPATH": "include"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Whoever starts the tests in the background has had their SIGINT ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as play:
        wait_for("the script waits", (tmp_path / "began").exists, 120)
        (place,) = places.iterdir()
        servers = [PostgresServer(place / name) for name in ("source", "ledger")]
        try:
            assert all(server.is_running() for server in servers)
            play.send_signal(told)
            assert play.wait(timeout=120) != 0
            assert [server.data for server in servers if server.data.exists()] == []
        finally:
            play.kill()
            for server in servers:
                server.remove()
