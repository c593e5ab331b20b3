"""Small disks that fill up under the lake, the ledger and the source: an error with a remedy, and nothing is lost."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.pipeline import Pipeline
from tests.support.remedies import Told
from tests.support.small_disk import SmallDisk
from tidemark.capture.preflight import lake_findings
from tidemark.errors import DiskFull, LedgerFull, SourceFull
from tidemark.storage.store import Store
from tidemark.unexpected_errors import without_texts

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"
MANY = "INSERT INTO orders SELECT i, encode(sha256(i::text::bytea), 'hex') || sha512(i::text::bytea) FROM"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small")
    yield disk
    disk.close()


@pytest.mark.walks("DiskFull")
def test_a_full_lake_stages_nothing_and_loses_nothing(pipeline: Pipeline, disk: SmallDisk, told: Told) -> None:
    pipeline.config = replace(pipeline.config, lake=str(disk.folder))
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute(f"{MANY} generate_series(1, 20000) i")
    with told(DiskFull, f"no space left on the disk of the lake {disk.folder}", "enlarge the disk"):
        pipeline.drain()
    assert pipeline.registered() == []
    disk.resize("64m")
    assert pipeline.drain().rows == 20000


@pytest.mark.parametrize("write", ["write_new", "write_atomic"])
def test_no_file_of_a_full_lake_is_there_in_part(disk: SmallDisk, write: str) -> None:
    store = Store(str(disk.folder))
    store.write_atomic("shop/plan.json", b"before")
    disk.fill()
    with pytest.raises(DiskFull):
        getattr(store, write)("shop/other.json", bytes(2**20))
    assert store.list("shop") == ["plan.json"]
    with pytest.raises(DiskFull):
        store.write_atomic("shop/plan.json", bytes(2**20))
    assert store.read("shop/plan.json") == b"before"


def test_preflight_says_that_the_lake_is_full(pipeline: Pipeline, disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(DiskFull):
        lake_findings.probe(Store(str(disk.folder)), pipeline.config)


def test_another_full_disk_of_the_machine_is_no_error_that_nobody_foresaw(disk: SmallDisk) -> None:
    with pytest.raises(OSError, match="No space left") as full:
        (disk.folder / "spilled").write_bytes(bytes(2**21))
    error = without_texts(full.value)
    assert isinstance(error, DiskFull)
    assert "the machine that runs the task" in str(error)


@pytest.mark.walks("LedgerFull")
def test_a_full_ledger_registers_nothing_and_is_told_from_the_source(pipeline: Pipeline, told: Told) -> None:
    """Its tables lie on a disk of their own, as those of a database in another tablespace."""
    pipeline.execute(ORDERS)
    pipeline.begin()
    name = f"small_{secrets.token_hex(3)}"

    def drain_for_long() -> None:
        for number in range(1000):
            pipeline.execute(f"INSERT INTO orders VALUES ({number}, 'a')")
            pipeline.drain(f"run{number}")

    with psycopg.connect(pipeline.ledger, autocommit=True) as connection:
        disk = SmallDisk(Path(data_directory(connection)).parent / name)
        try:
            shutil.chown(disk.folder, *owner(connection))
            connection.execute(f"CREATE TABLESPACE {name} LOCATION '{disk.folder}'".encode())
            connection.execute(f"ALTER TABLE tidemark.batches SET TABLESPACE {name}".encode())
            disk.fill()
            with told(LedgerFull, "could not extend file", "enlarge its disk"):
                drain_for_long()
            missing = pipeline.one("SELECT count(*) FROM orders") - staged(pipeline)
            assert missing == 1
            disk.resize("64m")
            pipeline.drain("after")
            assert pipeline.one("SELECT count(*) FROM orders") == staged(pipeline)
        finally:
            connection.execute(b"ALTER TABLE tidemark.batches SET TABLESPACE pg_default")
            connection.execute(f"DROP TABLESPACE {name}".encode())
            disk.close()
            disk.folder.rmdir()


def staged(pipeline: Pipeline) -> int:
    return sum(table.rows for manifest in pipeline.manifests() for table in manifest.tables)


@pytest.mark.walks("SourceFull")
def test_a_full_source_is_the_sources_error(pipeline: Pipeline, tmp_path: Path, told: Told) -> None:
    """Its walsender puts a transaction aside that is larger than its memory."""
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute(f"{MANY} generate_series(1, 20000) i")
    database = conninfo_to_dict(pipeline.source)["dbname"]
    pipeline.execute(f'ALTER DATABASE "{database}" SET logical_decoding_work_mem = 64')
    with psycopg.connect(pipeline.source) as connection:
        aside = Path(data_directory(connection)) / "pg_replslot" / pipeline.config.slot
        uid, gid = owner(connection)
    kept = tmp_path / "slot"
    shutil.copytree(aside, kept)
    disk = SmallDisk(aside)
    try:
        shutil.copytree(kept, aside, dirs_exist_ok=True)
        for place in (aside, *aside.iterdir()):
            shutil.chown(place, uid, gid)
        with told(SourceFull, "No space left on device", "enlarge its disk"):
            pipeline.drain()
        assert pipeline.registered() == []
    finally:
        disk.close()
    assert pipeline.drain().rows == 20000


def data_directory(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    return str(row[0])


def owner(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    of = os.stat(data_directory(connection))
    return of.st_uid, of.st_gid
