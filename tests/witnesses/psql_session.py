"""How the witnesses call psql: the command and its environment variables, as pg_regress sets them."""

from __future__ import annotations

import os
from pathlib import Path

from psycopg import ConnectionInfo


def psql_command(psql: Path, info: ConnectionInfo) -> list[str]:
    """psql without anybody's settings, for the database that a connection is to."""
    return [str(psql), "-X", "-q", "-h", info.host, "-p", str(info.port), "-U", info.user, "-d", info.dbname]


def psql_environment(info: ConnectionInfo, options: str) -> dict[str, str]:
    """`options` are settings of its session, as `-c name=value`."""
    return {
        **os.environ,
        "PGPASSWORD": info.password,
        "PGOPTIONS": options,
        "PGDATESTYLE": "Postgres, MDY",
        "PGTZ": "America/Los_Angeles",
    }
