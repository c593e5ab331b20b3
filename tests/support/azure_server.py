"""Azurite, Microsoft's emulator of Azure's blobs, where TIDEMARK_AZURITE names its program (`npm install azurite`, then
`node_modules/.bin/azurite-blob`): an account with one key, which everybody knows, and containers. In front of it stands
what Hadoop's client asks besides (tests/support/azure_front.py): so the account has no hierarchical namespace, or one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import obstore
from obstore.store import AzureStore

from sandbox.services.postgres import free_port, wait_for
from tests.support import certificates
from tests.support.azure_dfs import Namespace
from tests.support.azure_front import ACCOUNT, Front, in_front_of, without_namespace
from tidemark.config.airflow_connections import Connection
from tidemark.storage.lake_access import AZURE_SECRET, LakeAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.capture import Environment
    from tidemark.config import PipelineConfig

PROGRAM: Final = "TIDEMARK_AZURITE"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION: Final = "2021-12-02"
DOMAIN: Final = f"{ACCOUNT}.dfs.core.windows.net"

# What settings of Hadoop's are for the tests alone begin with: where the emulator is, and how long it is waited for.
OF_TESTS: Final = ("fs.azure.abfs.endpoint", "fs.azure.io.retry")


@dataclass(frozen=True, slots=True)
class Azure:
    """`url` is Azurite's account, which the tests themselves ask; whatever is tested asks `front`."""

    url: str
    front: Front
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_container(self, prefix: str = "lake") -> str:
        name = f"{prefix.lower().replace('_', '-')}-{next(self._numbers)}"
        assert _has_container(self.url, name)
        return name

    def store(self, container: str) -> Any:
        """What lies there, to obstore's functions."""
        return AzureStore(
            container.partition("@")[0],
            config={"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.url},
            client_options={"allow_http": True},
        )

    def names(self, container: str, below: str = "") -> list[str]:
        """Of what lies there, sorted; folders are none."""
        pages = obstore.list(self.store(container), below or None)
        entries = [entry for page in pages for entry in page]
        above = {name for entry in entries for name in _folders_of(str(entry["path"]))}
        return sorted(str(entry["path"]) for entry in entries if str(entry["path"]) not in above)

    def read(self, container: str, name: str) -> bytes:
        return bytes(obstore.get(self.store(container), name).bytes().to_bytes())

    def put(self, container: str, name: str, content: bytes) -> None:
        obstore.put(self.store(container), name, content, use_multipart=False)

    def copy(self, container: str, into: Path) -> None:
        """Everything in the container, or in the one of a lake's address, as files of a folder, and nothing besides."""
        names = self.names(container)
        for file in [path for path in into.rglob("*") if path.is_file()]:
            if str(file.relative_to(into)) not in names:
                file.unlink()
        for name in names:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(self.read(container, name))

    def lake(self) -> str:
        return f"abfss://{self.new_container()}@{DOMAIN}/lake"

    def access(self, lake: str, **fields: Any) -> LakeAccess:
        """What a connection of type wasb holds, and where the emulator is, which no connection says."""
        connection = Connection("lake", "wasb", **(fields or {"login": ACCOUNT, "password": KEY}))
        of_connection = connection.lake_access(lake)
        endpoint = f"{self.front.url}/{ACCOUNT}"
        return LakeAccess({**of_connection.settings, "endpoint": endpoint}, of_connection.secrets)

    def in_new_container(self, config: PipelineConfig) -> PipelineConfig:
        """The same pipeline with a lake in a container of its own."""
        lake = self.lake()
        return replace(config, lake=lake, lake_access=self.access(lake))

    def put_lake(self, environment: Environment) -> None:
        """Give a pipeline a lake in a container of its own, and let the session's driver in."""
        environment.config = self.in_new_container(environment.config)
        environment.buckets = self
        let_in(environment.spark(), environment.config.lake, environment.config.lake_access)


def let_in(spark: SparkSession, lake: str, lake_access: LakeAccess) -> None:
    """Tell a driver how the lake is got at, as spark-submit and the driver's environment would, and that Azure is
    here."""
    for key, value in of_hadoop(lake, lake_access).items():
        spark.sparkContext._jsc.hadoopConfiguration().set(key, value)
    certificates.trust(spark, certificates.made_for())


def of_hadoop(lake: str, lake_access: LakeAccess) -> dict[str, str]:
    """Settings of Hadoop's client, with secrets, which no driver of Tidemark's has there."""
    environment = lake_access.driver_environment(Path("/nonexistent"))
    secret = {f"${{env.{AZURE_SECRET}}}": environment.get(AZURE_SECRET, "")}
    settings = {k.removeprefix("spark.hadoop."): v for k, v in lake_access.spark_settings(lake).items()}
    return {
        **{name: secret.get(value, value) for name, value in settings.items()},
        OF_TESTS[0]: urlsplit(lake_access.settings["endpoint"]).netloc,
        # What fails here is asked again at once, and given up soon: Hadoop's client asks thirty times, for ten minutes.
        f"{OF_TESTS[1]}.min.backoff.interval": "20",
        f"{OF_TESTS[1]}.backoff.interval": "20",
        f"{OF_TESTS[1]}.max.backoff.interval": "100",
        f"{OF_TESTS[1]}.max.retries": "5",
    }


def signature(rights: str = "rwdlacx", hours: int = 1) -> str:
    """Of an account, for all that is in it ("Create an account SAS")."""
    of = {
        "sv": "2021-12-02",
        "ss": "b",
        "srt": "sco",
        "sp": rights,
        "st": _at(-24),
        "se": _at(hours),
        "spr": "https,http",
    }
    text = "\n".join([ACCOUNT, rights, "b", "sco", of["st"], of["se"], "", of["spr"], of["sv"], "", ""])
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({**of, "sig": base64.b64encode(digest).decode()})


def _at(hours: int) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def running(folder: Path, has_namespace: bool) -> Iterator[Azure]:
    """Start it, and end it with the block; with a hierarchical namespace, or without."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        os.environ[PROGRAM],
        "--silent",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--blobHost",
        "127.0.0.1",
    ]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--blobPort", str(port), "--location", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        account = f"http://127.0.0.1:{port}/{ACCOUNT}"
        wait_for(f"Azurite has a container ({folder}/azurite.log)", lambda: _has_container(account, "first"))
        with in_front_of(account) as front:
            if has_namespace:
                namespace = Namespace(account, KEY)
                front.translate, front.amend = namespace.answer, namespace.amend
            else:
                front.translate = without_namespace
            yield Azure(account, front)
    finally:
        process.terminate()
        process.wait()


def _folders_of(name: str) -> Iterator[str]:
    """A blob of a folder's name marks it."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _has_container(account: str, container: str) -> bool:
    """Make it, signed as "Authorize with Shared Key" in Azure's REST documentation says."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = f"PUT{chr(10) * 12}{canonical}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    request = Request(f"{account}/{container}?restype=container", method="PUT", headers=headers)
    try:
        with urlopen(request, timeout=5) as answer:
            return int(answer.status) == 201
    except ConnectionError:
        return False
    except OSError as failed:
        if isinstance(failed.__cause__ or getattr(failed, "reason", None), ConnectionError):
            return False
        raise
