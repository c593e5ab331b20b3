"""A real S3 server for a test session, with a bucket for each test, and what lies in a bucket.

It is ministack (requirements.in), which whoever can `make test` can install. With TIDEMARK_VERSITYGW=PROGRAM it is
versitygw, an S3 server that people run, whose objects are files. Both take one of two conditional puts and refuse the
other; both are asked here, as a witness, through botocore, which nothing that is tested uses.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sandbox.services.postgres import free_port, wait_for
from tidemark.storage.lake_access import LakeAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.capture import Environment
    from tidemark.config import PipelineConfig

KEY, SECRET, REGION = "tidemark-tests", "not-a-secret-of-anybody", "us-east-1"
PROGRAM = "TIDEMARK_VERSITYGW"


@dataclass(frozen=True, slots=True)
class S3Server:
    url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def client(self, service: str = "s3") -> Any:
        return _client(self.url, service)

    def new_bucket(self, prefix: str = "lake") -> str:
        name = f"{prefix.lower().replace('_', '-')}-{next(self._numbers)}"
        self.client().create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of a bucket below a prefix, sorted."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def read(self, bucket: str, key: str) -> bytes:
        content: bytes = self.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def uploads(self, bucket: str) -> list[str]:
        """The keys of multipart uploads that were begun and neither completed nor aborted."""
        return [upload["Key"] for upload in self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", ())]

    def copy(self, bucket: str, into: Path) -> None:
        """Everything in the bucket as files of a folder, and nothing besides. A name that is there is not read again
        unless its size or its time says so: what is written new is written once."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        objects = {o["Key"]: o for page in pages for o in page.get("Contents", ()) if not o["Key"].endswith("/")}
        for file in [path for path in into.rglob("*") if path.is_file()]:
            entry = objects.get(str(file.relative_to(into)))
            if entry is None:
                file.unlink()
            elif (file.stat().st_size, file.stat().st_mtime) == (
                entry["Size"],
                entry["LastModified"].timestamp(),
            ):
                del objects[entry["Key"]]
        for key, entry in objects.items():
            file = into / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
            os.utime(file, (entry["LastModified"].timestamp(),) * 2)

    def new_user(self, name: str, bucket: str, objects: Sequence[str], of_bucket: Sequence[str]) -> LakeAccess:
        """What a connection would hold: a new user of a guarded server, with rights below `lake/` and on the bucket."""
        client = self.client("iam")
        client.create_user(UserName=name)
        statements = [
            {"Effect": "Allow", "Action": list(rights), "Resource": f"arn:aws:s3:::{bucket}{below}"}
            for rights, below in ((objects, "/lake/*"), (of_bucket, ""))
            if rights
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        client.put_user_policy(UserName=name, PolicyName="lake", PolicyDocument=policy)
        key = client.create_access_key(UserName=name)["AccessKey"]
        secrets = {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}
        return LakeAccess({"endpoint": self.url, "region": REGION}, secrets)


@cache
def _client(url: str, service: str) -> Any:
    """Made once: each reads what the protocol is from files of megabytes."""
    return botocore.session.Session().create_client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        # A server closes connections that were idle; what is asked here may be asked again.
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3}),
    )


@contextmanager
def running(folder: Path, guarded: bool = False) -> Iterator[S3Server]:
    """Start it, and end it with the block. A guarded one knows users, their secrets and their rights."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command, variables = _command(folder, port, guarded)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        server = S3Server(f"http://127.0.0.1:{port}")
        wait_for(f"the S3 server answers ({folder / 'server.log'})", lambda: _answers(server))
        yield server
    finally:
        process.terminate()
        process.wait()


def _command(folder: Path, port: int, guarded: bool) -> tuple[list[str], dict[str, str]]:
    program = os.environ.get(PROGRAM)
    if program and not guarded:
        lake = folder / "buckets"
        lake.mkdir()
        command = [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(lake)]
        return command, {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    variables = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "s3", "LOG_LEVEL": "WARNING"}
    # Whose signed addresses it takes.
    variables |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    if guarded:
        variables |= {"AUTH": "true", "SERVICES": "s3,iam,sts"}
    return [str(Path(sys.executable).with_name("ministack"))], variables


def _answers(server: S3Server) -> bool:
    try:
        server.client().list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True


def put_lake(environment: Environment, server: S3Server, url: str | None = None) -> None:
    """Give a pipeline a lake in a bucket of its own, asked for at `url`, and let the session's driver in."""
    environment.config = in_new_bucket(environment.config, server, url)
    environment.buckets = server
    let_in(environment.spark(), environment.config.lake, environment.config.lake_access)


def in_new_bucket(config: PipelineConfig, server: S3Server, url: str | None = None) -> PipelineConfig:
    """The same pipeline with a lake in a bucket of its own."""
    return replace(config, lake=f"s3a://{server.new_bucket()}/lake", lake_access=access(url or server.url))


def let_in(spark: SparkSession, lake: str, lake_access: LakeAccess) -> None:
    """Tell a driver how the lake is got at, as spark-submit and the driver's environment would."""
    bucket = f"fs.s3a.bucket.{urlsplit(lake).netloc}"
    settings = {
        **{k.removeprefix("spark.hadoop."): v for k, v in lake_access.spark_settings(lake).items()},
        f"{bucket}.access.key": lake_access.secrets["access_key_id"],
        f"{bucket}.secret.key": lake_access.secrets["secret_access_key"],
        f"{bucket}.fast.upload.buffer": "bytebuffer",  # of a local file system that is not the session's
    }
    for key, value in settings.items():
        spark.sparkContext._jsc.hadoopConfiguration().set(key, value)


def access(url: str) -> LakeAccess:
    """What a connection of the lake would hold."""
    return LakeAccess({"endpoint": url, "region": REGION}, {"access_key_id": KEY, "secret_access_key": SECRET})
