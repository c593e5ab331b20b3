"""What staging asks of any object store, asked of the S3 server of the tests, of Google's protocol in front of it and,
where TIDEMARK_AZURITE names it, of Azure's emulator: put only if absent, one winner, whole, listed, from a name on,
deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import uuid4

import pytest

from tests.support import azure_server, s3_server
from tests.support.azure_server import Azure
from tests.support.google_server import Google
from tests.support.s3_server import S3Server
from tidemark.storage.store import Store

NewStore = Callable[[], Store]


# Where in a bucket the lake lies.
ROOTS = {"s3": "/lake", "s3, the bucket itself": "", "s3, deep": "/a/b c/d=1/é/lake"}
ELSEWHERE = ("google", *(["azure"] if azure_server.PROGRAM in os.environ else []))


@pytest.fixture(scope="module", params=[*ROOTS, *ELSEWHERE])
def new_store(request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """A function that opens the lake anew, as a task of its own does."""
    if request.param in ROOTS:
        server: S3Server = request.getfixturevalue("s3_server")
        lake = f"s3a://{server.new_bucket()}{ROOTS[request.param]}"
        yield lambda: Store(lake, s3_server.access(server.url))
        return
    if request.param == "google":
        google: Google = request.getfixturevalue("google")
        lake = f"gs://{google.server.new_bucket()}/lake"
        yield lambda: Store(lake, google.access(lake))
        return
    azure: Azure = request.getfixturevalue("azure")
    lake = azure.lake()
    yield lambda: Store(lake, azure.access(lake))


@pytest.fixture
def folder() -> str:
    return f"p/{uuid4().hex}"


def test_a_file_is_written_whole_and_once(new_store: NewStore, folder: str) -> None:
    store, large = new_store(), os.urandom(20_000_000)
    with store.create(f"{folder}/large.bin") as file:
        file.write(large)
    store.sync_folders(folder)
    store.write_new(f"{folder}/one.json", b"{}")
    with pytest.raises(FileExistsError):
        new_store().write_new(f"{folder}/one.json", b"[]")
    with suppress(RuntimeError), store.create(f"{folder}/broken.bin") as file:
        file.write(b"half")
        raise RuntimeError("it dies here")
    store.sync_folders(folder)
    assert new_store().list(folder) == ["large.bin", "one.json"]
    assert new_store().read(f"{folder}/large.bin") == large
    assert new_store().size(f"{folder}/large.bin") == len(large)
    assert store.read(f"{folder}/one.json") == b"{}"
    store.write_atomic(f"{folder}/one.json", b"[]")
    assert store.read(f"{folder}/one.json") == b"[]"


def test_of_four_that_write_a_file_at_once_one_wins(new_store: NewStore, folder: str) -> None:
    def write(content: bytes) -> bytes | None:
        try:
            new_store().write_new(f"{folder}/manifest.json", content)
        except FileExistsError:
            return None
        return content

    with ThreadPoolExecutor(4) as four:
        (winner,) = filter(None, four.map(write, (b"1", b"2", b"3", b"4")))
    assert new_store().read(f"{folder}/manifest.json") == winner


def test_it_is_listed_from_a_name_on_and_deleted(new_store: NewStore, folder: str) -> None:
    store = new_store()
    for name in ("00A-x/one.bin", "00B-x/one.bin", "00B-x/two.bin", "00C/a/b.bin", "00D"):
        store.write_new(f"{folder}/{name}", b"")
    assert store.list(folder, "00B") == ["00B-x", "00C", "00D"]
    assert store.list(folder, "00E") == []
    store.delete(f"{folder}/00B-x")
    assert store.list(folder) == ["00A-x", "00C", "00D"]
    assert not store.exists(f"{folder}/00B-x/one.bin")
    with pytest.raises(FileNotFoundError):
        store.read(f"{folder}/00B-x/one.bin")


def test_preflight_finds_it_fit(new_store: NewStore, folder: str) -> None:
    seen = new_store().check_bucket([f"{folder}/a/1", f"{folder}/b/1"])
    assert not seen.versioned
    assert not seen.expires
