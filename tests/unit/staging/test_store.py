"""The lake root as a place for files, on a disk and behind fsspec."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.staging.store import Store


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "lake") if request.param == "disk" else f"memory://{tmp_path.name}/lake")


def test_what_was_written_is_read_listed_and_deleted(store: Store) -> None:
    with store.create("p/a/one.bin") as file:
        file.write(b"one")
    store.write_atomic("p/a/two.json", b"{}")

    assert store.read("p/a/one.bin") == b"one"
    assert store.size("p/a/one.bin") == 3
    assert store.list("p/a") == ["one.bin", "two.json"]
    assert store.list("p") == ["a"]
    store.delete("p/a")
    assert store.list("p/a") == []
    assert not store.exists("p/a/two.json")


def test_a_file_is_never_created_twice(store: Store) -> None:
    with store.create("p/one.bin") as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), store.create("p/one.bin"):
        pass
    assert store.read("p/one.bin") == b"first"


def test_an_atomic_write_replaces_the_whole_file(store: Store) -> None:
    store.write_atomic("p/manifest.json", b"a long first content")
    store.write_atomic("p/manifest.json", b"second")
    assert store.read("p/manifest.json") == b"second"
    assert store.list("p") == ["manifest.json"]


def test_what_is_not_there_is_listed_as_nothing_and_deleted_without_error(store: Store) -> None:
    assert store.list("nowhere") == []
    store.delete("nowhere/at/all")
    with pytest.raises(FileNotFoundError):
        store.read("nowhere")


@pytest.mark.parametrize("path", ["/etc/passwd", "p/../../outside", ".."])
def test_a_path_never_leaves_the_lake_root(store: Store, path: str) -> None:
    with pytest.raises(ValueError, match="below the lake root"):
        store.read(path)


def test_the_lake_root_itself_is_never_deleted(store: Store) -> None:
    with pytest.raises(ValueError, match="never deleted"):
        store.delete("")


def test_a_relative_lake_root_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        Store("lake")


def test_folders_are_fsynced_from_the_leaf_to_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path / "lake"))
    store.write_atomic("p/staging/g1/batch/table/v1-1.parquet", b"")
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    store.sync_folders("p/staging/g1/batch")
    root = tmp_path / "lake"
    expected = ["p/staging/g1/batch/table", "p/staging/g1/batch", "p/staging/g1", "p/staging", "p", ""]
    assert synced == [str(root / path) for path in expected]
