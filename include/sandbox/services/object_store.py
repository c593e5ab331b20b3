"""The S3 server of `make up CLUSTER=1` and docker-compose.yaml: ministack, whose objects are files below .tidemark.

`python -m sandbox.services.object_store <host> <port>` makes the bucket, by the key that the environment has. The
server is for trying things out: it takes the right key with any secret, so the key is as random as a password.
What preflight asks of a bucket, it does (tests/object_store).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandbox.services.daemon import Daemon

BUCKET: Final = "tidemark"
REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """`folder` keeps its objects."""

    folder: Path
    port: int
    key: str = field(repr=False)
    secret: str = field(repr=False)
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def daemon(self) -> Daemon:
        environment = {
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": self.host,
            "SERVICES": "s3",
            "IOT_MTLS_ENABLED": "0",  # a port for all of the network, otherwise
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.folder),
            "LOG_LEVEL": "WARNING",
        }
        return Daemon("s3", (str(Path(sys.executable).with_name("ministack")),), environment)

    def client(self) -> Any:
        import botocore.session
        from botocore.config import Config

        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, proxies={}),
        )

    def answers(self) -> bool:
        """Whether it does, and has its bucket from now on."""
        from botocore.exceptions import BotoCoreError, ClientError

        client = self.client()
        try:
            if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            return False
        return True

    def empty(self) -> None:
        """Delete every object."""
        client = self.client()
        for keys in self._pages(client):
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": keys, "Quiet": True})

    def _pages(self, client: Any) -> Iterator[list[dict[str, str]]]:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            if keys := [{"Key": entry["Key"]} for entry in page.get("Contents", ())]:
                yield keys


def main(host: str, port: str) -> int:
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    return 0 if ObjectStore(Path("/nonexistent"), int(port), key, secret, host).answers() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
