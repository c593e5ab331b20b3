"""The lake root as a place for files, on a disk; object stores are in tests/object_store."""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.remedies import Told
from tests.unit.test_architecture import REPOSITORY
from tidemark.errors import DeltaRsMissing, StoreClientMissing
from tidemark.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "lake"))


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


def test_what_is_put_new_is_whole_and_never_replaced(store: Store) -> None:
    store.write_new("p/manifest.json", b"first")
    with pytest.raises(FileExistsError):
        store.write_new("p/manifest.json", b"second")
    assert store.read("p/manifest.json") == b"first"
    assert store.list("p") == ["manifest.json"]


def test_an_atomic_write_replaces_the_whole_file(store: Store) -> None:
    store.write_atomic("p/manifest.json", b"a long first content")
    store.write_atomic("p/manifest.json", b"second")
    assert store.read("p/manifest.json") == b"second"
    assert store.list("p") == ["manifest.json"]


def test_two_levels_are_listed_from_a_folder_and_a_name_in_it_on(store: Store) -> None:
    for name in ("g1/00A-x/one.bin", "g2/generation.json", "g2/00A-x/one.bin", "g2/00B-x/one.bin", "g3/00A-x/v/a.bin"):
        store.write_new(f"p/{name}", b"")
    assert store.list_from("p", "g2", "00B") == {"g2": ["00B-x", "generation.json"], "g3": ["00A-x"]}
    assert store.list_from("p", "g4", "") == {}
    assert store.list_from("nowhere", "g1", "") == {}


def test_what_is_not_there_is_listed_as_nothing_and_deleted_without_error(store: Store) -> None:
    assert store.list("nowhere") == []
    store.delete("nowhere/at/all")
    with pytest.raises(FileNotFoundError):
        store.read("nowhere")


def test_a_folder_is_deleted_in_which_a_task_without_lease_still_writes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_new("batch/one.parquet", b"1")
    late = [b"2", b"3"]
    rmdir = os.rmdir

    def write_first(path: Any, **named: Any) -> None:
        if late:
            (next(tmp_path.rglob("batch")) / f"late {len(late)}").write_bytes(late.pop())
        rmdir(path, **named)

    monkeypatch.setattr(os, "rmdir", write_first)
    store.delete("batch")
    assert not late
    assert store.list("batch") == []


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


def test_a_place_that_is_neither_a_folder_nor_an_object_store_is_refused() -> None:
    with pytest.raises(ValueError, match="a lake root is a folder"):
        Store("hdfs://host/lake")


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


def modes(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): stat.S_IMODE(p.stat().st_mode) for p in sorted(root.rglob("*"))}


@pytest.fixture
def any_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("any_umask")
def test_what_is_written_is_for_the_owner_alone_and_the_tables_folder_is_not(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "lake"))
    with store.create("shop/staging/g1/a/t/v1-0.parquet") as file:
        file.write(b"rows")
    store.write_atomic("shop/plans/p/plan.json", b"plan")
    assert modes(tmp_path) == {
        "lake": 0o775,
        "lake/shop": 0o775,
        "lake/shop/staging": 0o700,
        "lake/shop/staging/g1": 0o700,
        "lake/shop/staging/g1/a": 0o700,
        "lake/shop/staging/g1/a/t": 0o700,
        "lake/shop/staging/g1/a/t/v1-0.parquet": 0o600,
        "lake/shop/plans": 0o700,
        "lake/shop/plans/p": 0o700,
        "lake/shop/plans/p/plan.json": 0o600,
    }


def test_a_folder_with_the_setgid_bit_shares_what_is_written_with_its_group(tmp_path: Path) -> None:
    pipeline = tmp_path / "lake" / "shop"
    pipeline.mkdir(parents=True)
    pipeline.chmod(0o2750)
    store = Store(str(tmp_path / "lake"))
    store.write_atomic("shop/plans/p/plan.json", b"plan")
    assert modes(pipeline) == {"plans": 0o2750, "plans/p": 0o2750, "plans/p/plan.json": 0o640}


def test_a_file_on_disk_is_fsynced_before_it_counts_as_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with Store(str(tmp_path)).create("one.bin") as file:
        file.write(b"four")
    assert synced == [4]


def test_a_listing_from_a_name_on_holds_that_name_and_what_is_above(store: Store) -> None:
    for name in ("00A-x/one.bin", "00B-x/one.bin", "00B-x/two.bin", "00C/a/b.bin", "00D"):
        store.write_new(f"p/{name}", b"")
    assert store.list("p", "00B") == ["00B-x", "00C", "00D"]
    assert store.list("p", "00C") == ["00C", "00D"]
    assert store.list("p", "00D") == ["00D"]
    assert store.list("p", "00E") == []
    assert store.list("nowhere", "00A") == []


@pytest.mark.walks("StoreClientMissing")
def test_a_bucket_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    with monkeypatch.context() as machine:
        machine.setitem(sys.modules, "obstore", None)
        machine.delitem(sys.modules, "tidemark.storage.object_store", raising=False)
        with told(StoreClientMissing, "s3a://bucket/lake", "`pip install"):
            Store("s3a://bucket/lake")
    assert Store("s3a://bucket/lake").is_bucket


def test_what_is_to_be_installed_by_hand_is_what_the_extras_bring() -> None:
    assert {of_extra(extra) for extra in ("gcs", "azure")} == {of_extra("s3")}
    assert f"`pip install '{of_extra('s3')}'`" in StoreClientMissing.remedy
    assert f"`pip install '{of_extra('lake')}'`" in DeltaRsMissing.remedy


def of_extra(name: str) -> str:
    """The one package that the wheel's extra brings."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (package,) = project["optional-dependencies"][name]
    return str(package)
