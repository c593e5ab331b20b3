"""Runs a PostgreSQL server of the system's packages: what the embedded ones lack is TLS, and version 15."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from sandbox.services.postgres import PostgresServer

# Oldest first.
PROGRAMS: Final = sorted(Path("/usr/lib/postgresql").glob("1[5-9]/bin/postgres"))
VERSIONS: Final = [int(program.parts[-3]) for program in PROGRAMS]


class SystemServer(PostgresServer):
    """`version` is one of VERSIONS."""

    def _binaries(self) -> Path:
        return PROGRAMS[VERSIONS.index(self.version)].parents[1]

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        of_16 = ("-c", "scram_iterations=1")
        return super()._run(program, *(word for word in arguments if word not in of_16), check=check)
