"""`pg_upgrade` of an embedded server: a stopped cluster -> a new one of version 18, with its rows and its slots, which
are kept from 17 on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.services.postgres import PostgresServer, free_port


@contextmanager
def upgraded(old: PostgresServer, folder: Path) -> Iterator[PostgresServer]:
    """The new cluster, which runs; the old one is stopped, and stays as it is."""
    new = PostgresServer(folder, settings=old.settings, password=old.password)
    new.remove()
    try:
        new.start()  # makes the cluster
        new.stop()
        old.stop()
        if old.version < 18:  # the first whose clusters have checksums unless told otherwise; both have to be alike
            run_beside(old, "pg_checksums", "--enable", "-D", str(old.data))
        _pg_upgrade(old, new)
        new.start()
        yield new
    finally:
        new.remove()


def _pg_upgrade(old: PostgresServer, new: PostgresServer) -> None:
    """It writes beside the new data, and asks for its password by a file."""
    passfile = new.home / "pgpass-of-both"
    new._write_secret(passfile, f"*:*:*:postgres:{old.password}\n")
    command = ["pg_upgrade", "-U", "postgres", "-s", str(new.home)]
    for server, lower in ((old, True), (new, False)):
        options = ("-b", "-d", "-p") if lower else ("-B", "-D", "-P")
        values = (str(server.binary("postgres").parent), str(server.data), str(free_port()))
        command += [word for pair in zip(options, values, strict=True) for word in pair]
    run_beside(new, *command, environment={"PGPASSFILE": str(passfile)})


def run_beside(
    server: PostgresServer, program: str, *arguments: str, environment: dict[str, str] | None = None
) -> None:
    """One of the server's own programs, as the owner of its files, in their folder."""
    owner = server._owner()
    as_root = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": "/", **(environment or {})}
    command = [str(server.binary(program)), *arguments]
    done = subprocess.run(  # type: ignore[call-overload]
        command, cwd=server.home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, **as_root
    )
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-500:]}"
