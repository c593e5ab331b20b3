"""A lake in a bucket of its own, behind a proxy that counts and breaks requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3_proxy import Proxy
from tests.support.s3_server import S3Server, access, running
from tidemark.storage.store import Store


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that knows users, their secrets and their rights."""
    with running(tmp_path_factory.mktemp("guarded"), guarded=True) as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def store(s3_proxy: Proxy, bucket: str) -> Store:
    return Store(f"s3a://{bucket}/lake", access(s3_proxy.url))
