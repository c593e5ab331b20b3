"""Azurite, Microsoft's emulator of Azure's blobs, where TIDEMARK_AZURITE names its program (`npm install azurite`, then
`node_modules/.bin/azurite-blob`): an account with one key, which everybody knows, and containers.

It has no hierarchical namespace, so it shows how Tidemark's own client works, and nothing of Spark's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from sandbox.services.postgres import free_port, wait_for
from tidemark.connections import Connection
from tidemark.lake_access import LakeAccess

PROGRAM: Final = "TIDEMARK_AZURITE"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION: Final = "2021-12-02"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Start it, and end it with the block; the address of its account."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [os.environ[PROGRAM], "--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--blobPort", str(port), "--location", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        account = f"http://127.0.0.1:{port}/{ACCOUNT}"
        wait_for(f"Azurite has a container ({folder}/azurite.log)", lambda: _has_container(account))
        yield account
    finally:
        process.terminate()
        process.wait()


def lake() -> str:
    return f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/lake"


def access(account: str) -> LakeAccess:
    """What a connection of type wasb holds, and where the emulator is, which no connection says."""
    of_connection = Connection("lake", "wasb", login=ACCOUNT, password=KEY).lake_access(lake())
    return LakeAccess({**of_connection.settings, "endpoint": account}, of_connection.secrets)


def _has_container(account: str) -> bool:
    """Make it, signed as "Authorize with Shared Key" in Azure's REST documentation says."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = f"PUT{chr(10) * 12}{canonical}/{ACCOUNT}/{ACCOUNT}/lake\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    try:
        with urlopen(Request(f"{account}/lake?restype=container", method="PUT", headers=headers), timeout=5) as answer:
            return int(answer.status) == 201
    except ConnectionError:
        return False
    except OSError as failed:
        if isinstance(failed.__cause__ or getattr(failed, "reason", None), ConnectionError):
            return False
        raise
