"""What a retry mends, or somebody who lets go of something: the same task, run again, and the tables end equal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from py4j.protocol import Py4JNetworkError

from sandbox.services.postgres import running, wait_for
from tests.conftest import QUIET
from tests.faults.remedies.conftest import another_row
from tests.support.capture import Environment
from tests.support.hung_commit import SERVER_SETTINGS, HungCommit
from tests.support.migrations import newer_version
from tests.support.remedies import Told, ends_equal
from tidemark.capture import drain as drain_module
from tidemark.capture.continuity import generation
from tidemark.config import TableRule
from tidemark.errors import (
    ChangesGone,
    DatabaseRefused,
    DatabaseUnreachable,
    DrainOvertaken,
    DrainStalled,
    FormatIsNewer,
    GenerationStale,
    LakeFileBroken,
    LakeUnusable,
    LeaseLost,
    LeaseTaken,
    LedgerBeforeReleases,
    LedgerIsNewer,
    LedgerNotReady,
    PipelineFileDiffers,
    PipelineFileSuperseded,
    PreflightFailed,
    PreflightWaits,
    ReplicationFailed,
    ShapeUnsettled,
    SourceLocked,
    TidemarkError,
    UnexpectedError,
)
from tidemark.formats import layout
from tidemark.formats.manifest import BatchManifest
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.migrations import migrate
from tidemark.target.delta import delta_tables
from tidemark.unexpected_errors import hides_foreign_texts

pytestmark = pytest.mark.thorough


@pytest.mark.walks("SourceLocked", "LeaseTaken", "UnexpectedError", "ReplicationFailed", "GenerationStale")
def test_the_same_task_run_again_goes_on(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("again", lock_timeout_s=1)
    shop.begin_backfill("shop.item")
    shop.plan()
    shop.execute("BEGIN", "LOCK TABLE shop.item IN ACCESS EXCLUSIVE MODE", session="its owner")
    with told(SourceLocked, "have its owner end it; the retry asks again"):
        shop.read()
    shop.execute("COMMIT", session="its owner")
    shop.read()
    shop.end_backfill()
    ends_equal(shop)

    another_row(shop)
    shop.begin_run()
    with shop.holding_lease("slot"), told(LeaseTaken, "the retry takes the lease over when it has"):
        shop.drain()
    shop.drain()

    def break_off(name: str) -> None:
        if name == "merge.after_plan":
            raise OSError("a disk that quotes a secret")

    with monkeypatch.context() as patch:
        patch.setattr("tidemark.capture.merge_planning.failpoints.reach", break_off)
        with told(UnexpectedError, "The task is retried") as unexpected:
            hides_foreign_texts()(shop.merge)()
        assert "a secret" not in str(unexpected.value)
    shop.merge()
    shop.confirm()
    ends_equal(shop)

    emit = drain_module.emit_heartbeat

    def end_the_stream(*arguments: Any) -> Any:
        shop.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_replication")
        return emit(*arguments)

    another_row(shop)
    shop.begin_run()
    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_heartbeat", end_the_stream)
        with told(ReplicationFailed, "The retry resumes at the last staged position; nothing is lost"):
            shop.drain()
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)

    settle = generation.settle

    def settle_and_move(*arguments: Any) -> Any:
        settled = settle(*arguments)
        another_row(shop)
        shop.execute(f"SELECT pg_replication_slot_advance('{shop.config.slot}', pg_current_wal_lsn())")
        return settled

    shop.begin_run()
    with monkeypatch.context() as patch:
        patch.setattr(generation, "settle", settle_and_move)
        with told(GenerationStale, "and opens a new generation if one is needed"):
            shop.drain()
    with pytest.raises(ChangesGone, match="Start a backfill"):
        shop.drain()
    shop.run()
    shop.backfill()
    ends_equal(shop)


@pytest.mark.walks("DrainStalled")
def test_a_stalled_drain_is_resumed(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("stalled", drain_stall_s=1)
    another_row(shop)
    shop.begin_run()
    stopped: list[int] = []
    emit = drain_module.emit_heartbeat

    def stop_walsender(*arguments: Any) -> Any:
        query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{shop.config.slot}'"
        stopped.append(shop.one(query))
        waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {stopped[0]} AND wait_event_type IN ('Activity', 'Client')"
        wait_for("the walsender has nothing to do", lambda: shop.sql(waits))
        os.kill(stopped[0], signal.SIGSTOP)
        return emit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_heartbeat", stop_walsender)
        try:
            with told(DrainStalled, "the retry resumes at the last staged position"):
                shop.drain()
        finally:
            os.kill(stopped[0], signal.SIGCONT)
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)


@pytest.mark.walks(
    "DatabaseUnreachable", "DatabaseRefused", "PreflightWaits", "PreflightFailed", "LedgerNotReady", "LakeUnusable"
)
def test_a_server_is_started_and_a_login_corrected(
    begun: Callable[..., Environment], told: Told, tmp_path: Path, new_database: Callable[[str], str]
) -> None:
    with running(tmp_path / "source", 18, **QUIET) as server:
        shop = begun("servers", server=server)
        another_row(shop)
        shop.close()
        server.stop("fast")
        shop.begin_run()
        with told(DatabaseUnreachable, "Start the server", "the retry connects again"):
            shop.drain()
        ledger, shop.ledger = shop.ledger, "host=127.0.0.1 port=1 dbname=x"
        with told(PreflightWaits, "The retry runs preflight again"):
            shop.preflight()
        shop.ledger = ledger
        server.start()
        shop.run()
        source, shop.source = shop.source, psycopg.conninfo.make_conninfo(shop.source, user="nobody")
        with told(DatabaseRefused, "Correct host, database, login or password of the Airflow connection"):
            shop.run()
        (tmp_path / "a file").touch()
        shop.config = replace(shop.config, lake=str(tmp_path / "a file" / "lake"))
        with told(PreflightFailed, "Each line says what to do; then run the DAG again"):
            shop.run()
        shop.source = source
        with told(LakeUnusable, "Correct `lake` in the pipeline file"):
            shop.run()
        shop.config = replace(shop.config, lake=str(shop.folder / "lake"))
        another_row(shop)
        ends_equal(shop)
        shop.close()

    fresh = begun("ledgers")
    fresh.ledger, kept = new_database("ledger"), fresh.ledger
    fresh.begin_run()
    with told(LedgerNotReady, "Run the preflight task of the pipeline"):
        fresh.drain()
    fresh.preflight()
    with open_ledger(fresh.ledger, fresh.config.pipeline) as book:
        assert book.execute("SELECT count(*) FROM tidemark.tables").fetchone() == (1,)
    fresh.ledger = kept
    ends_equal(fresh)


@pytest.mark.walks("PipelineFileDiffers", "PipelineFileSuperseded")
def test_workers_get_the_same_file(begun: Callable[..., Environment], told: Told) -> None:
    shop = begun("files", TableRule("shop.item"), file_settle_s=600)
    older = shop.config
    newer = replace(older, tables=(TableRule("shop.item"), TableRule("shop.more")))
    shop.execute("CREATE TABLE shop.more (id int PRIMARY KEY)")
    shop.config = newer
    shop.preflight()
    shop.execute("INSERT INTO shop.more VALUES (1)")
    shop.config = older
    shop.begin_run()
    with told(PipelineFileDiffers, "Copy the same file to all workers; the retry goes on once they agree"):
        shop.drain()
    with told(PipelineFileSuperseded, "Copy the newer file to this worker"):
        shop.preflight()
    shop.config = newer
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)


@pytest.mark.walks("ShapeUnsettled")
def test_a_commit_that_hangs_is_waited_for(
    new_item: Callable[..., Environment], told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "source", 18, **{**QUIET, **SERVER_SETTINGS}) as server:
        shop = new_item("hangs", TableRule("shop.item", mask={"note": "null"}), server=server)
        shop.run()
        another_row(shop)
        shop.run()
        monkeypatch.setattr("tidemark.capture.definitions.column_guarding.VISIBLE_WITHIN_S", 1)
        hung = HungCommit(
            shop.source,
            ["ALTER TABLE shop.item ADD size int", "INSERT INTO shop.item VALUES (10, 'a secret', 1)"],
        )
        shop.begin_run()
        with told(ShapeUnsettled, "synchronous_standby_names", "The retry reads the names again"):
            shop.drain()
        hung.release()
        shop.drain()
        shop.merge()
        shop.confirm()
        ends_equal(shop)
        shop.close()


@pytest.mark.parametrize(
    "leaf",
    [
        pytest.param(LeaseLost, marks=pytest.mark.walks("LeaseLost")),
        pytest.param(DrainOvertaken, marks=pytest.mark.walks("DrainOvertaken")),
    ],
)
def test_the_retry_of_a_drain_that_was_overtaken_goes_on_from_the_ledger(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch, leaf: type[TidemarkError]
) -> None:
    shop = begun("overtaken")
    real = drain_module.reach
    attempt = f"SELECT attempt FROM tidemark.leases WHERE pipeline = '{shop.config.pipeline}' AND name = 'slot'"

    def overtake(name: str) -> None:
        if name != "drain.before_manifest":
            return real(name)
        monkeypatch.setattr(drain_module, "reach", real)
        mine, ((own,),) = shop.report, shop.ledger_query(attempt)
        shop.let_leases_end()
        shop.begin_run()
        shop.drain()
        shop.report = mine
        if leaf is DrainOvertaken:  # as if the fence of leases had a hole: the chain is the second one
            shop.ledger_query(
                "INSERT INTO tidemark.leases VALUES (%s, 'slot', 'x', %s, now(), now() + '1 hour'::interval)",
                shop.config.pipeline,
                own,
            )
        return None

    another_row(shop)
    shop.begin_run()
    monkeypatch.setattr(drain_module, "reach", overtake)
    with told(leaf, "goes on from"):
        shop.drain()
    shop.let_leases_end()
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)


@pytest.mark.walks("LakeFailed")
def test_a_lake_or_cluster_that_failed_parks_nothing_and_the_next_run_goes_on(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("failed", park_after=1)
    another_row(shop)

    def lost(*_: Any) -> Any:
        raise Py4JNetworkError("the driver's JVM is gone")

    with monkeypatch.context() as patch:
        patch.setattr(delta_tables, "pin", lost)
        shop.begin_run()
        shop.drain()
        shop.merge()
    (result,) = [
        PlanResult.from_json(file.read_text())
        for file in Path(shop.config.lake).rglob("result.json")
        if "LakeFailed" in file.read_text()
    ]
    told.parked(result.tables[0].error, "LakeFailed", "the next run goes on from the tables' positions")
    row = shop.table_row("shop.item")
    assert (row.life.merge, row.failed_runs) == ("merging", 0)
    ends_equal(shop)


@pytest.mark.walks("LedgerIsNewer", "FormatIsNewer")
def test_a_worker_of_an_older_version_is_upgraded(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("older")
    another_row(shop)
    shop.begin_run()
    shop.crash("drain.before_register")
    shop.let_leases_end()
    with newer_version():
        migrate(shop.ledger)
    with told(LedgerIsNewer, "Install the newer version wherever tasks of this ledger's"):
        shop.drain()
    with newer_version():
        with monkeypatch.context() as patch:
            patch.setattr(BatchManifest, "FORMAT", BatchManifest.FORMAT - 1)
            with told(FormatIsNewer, "Install the newer version wherever tasks of this pipeline run"):
                shop.drain()
        shop.drain()
        shop.merge()
        shop.confirm()
        ends_equal(shop)


@pytest.mark.walks("LakeFileBroken")
def test_a_damaged_file_is_brought_back(begun: Callable[..., Environment], told: Told) -> None:
    shop = begun("damaged")
    shop.maintain()
    another_row(shop)
    path = Path(shop.config.lake, layout.retired_file(shop.config.pipeline, 1))
    as_it_was = path.read_bytes()
    path.write_bytes(as_it_was[:40])
    shop.begin_run()
    with told(LakeFileBroken, str(path.relative_to(shop.config.lake)), "Bring the file back as it was"):
        shop.drain()
    path.write_bytes(as_it_was)
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)


@pytest.mark.walks("LedgerBeforeReleases")
def test_a_ledger_from_before_the_first_release_is_begun_anew(begun: Callable[..., Environment], told: Told) -> None:
    shop = begun("before")
    another_row(shop)
    older = shop.config
    with psycopg.connect(shop.ledger, autocommit=True) as ledger:
        ledger.execute("ALTER TABLE tidemark.migrations RENAME TO schema_migrations")
        with told(
            LedgerBeforeReleases, "DROP SCHEMA tidemark CASCADE", "a new name and a new slot", "start a backfill"
        ):
            shop.drain()
        ledger.execute("DROP SCHEMA tidemark CASCADE")
    shop.close()
    shop.execute(f"SELECT pg_drop_replication_slot('{older.slot}')")
    name = f"{older.pipeline}_anew"
    shop.config = replace(older, pipeline=name, slot=f"tidemark_{name}", publication=f"tidemark_{name}")
    shop.run()
    shop.backfill("shop.item")
    ends_equal(shop)
