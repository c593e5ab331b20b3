from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta

from tests.support.manifests import manifest_of, path_of
from tidemark.formats.manifest import BatchManifest
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import overview, runs
from tidemark.ledger.observations.runs import KEPT_DAYS, Figures
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

NOW = datetime.now(UTC)


def test_the_tries_of_a_stage_add_up_and_the_last_one_says_whether_it_failed(
    book: Ledger, generation: Generation
) -> None:
    runs.note_stage(book, "shop_capture/1", "drain", 2.5, failed=True)
    runs.note_stage(book, "shop_capture/1", "drain", 1.25, failed=False)
    runs.note_stage(book, "shop_capture/1", "merge", 9.0, failed=False)
    (run,) = runs.last(book, 10)
    assert run["stages"] == {
        "drain": {"s": 3.75, "tries": 2, "failed": False, "error": ""},
        "merge": {"s": 9.0, "tries": 1, "failed": False, "error": ""},
    }
    assert run["began_at"] < run["ended_at"]
    assert run["verdict"] is None


def test_before_the_first_generation_nothing_is_written_and_nothing_fails(book: Ledger) -> None:
    runs.note_stage(book, "shop_capture/1", "preflight", 1.0, failed=True)
    runs.note_level(book, "shop_capture/1", NOW)
    runs.note_figures(book, "shop_capture/1", Figures("red"))
    assert runs.last(book, 10) == []


def test_the_figures_of_a_run_are_kept_with_what_it_registered(
    book: Ledger, lease: Lease, generation: Generation
) -> None:
    manifests = [manifest_of(100, 200, "s.a", "s.b"), manifest_of(200, 300, "s.b")]
    for manifest in manifests:
        batches.register(book, lease, manifest, path_of(manifest))
    run_id = manifests[0].run_id
    figures = Figures("warning", 1, Lsn(300), Lsn(100), Lsn(100), Lsn(900), 800, 12.5, 700, None, 2, 30, {"ok": 2})
    runs.note_stage(book, run_id, "drain", 1.0, failed=False)
    for _ in range(2):  # a cleared task writes them again
        runs.note_figures(book, run_id, figures)
    (run,) = runs.last(book, 10)
    assert Figures(**{field.name: run[field.name] for field in fields(Figures)}) == figures
    assert (run["batches"], run["changes"]) == (2, 30)
    assert run["stages"] == {"drain": {"s": 1.0, "tries": 1, "failed": False, "error": ""}}


def test_figures_in_the_middle_of_a_run_count_each_of_its_batches_once(
    book: Ledger, lease: Lease, generation: Generation
) -> None:
    def counted(*manifests: BatchManifest, up_to: int) -> tuple[int, int]:
        for manifest in manifests:
            batches.register(book, lease, manifest, path_of(manifest))
        runs.note_figures(book, "ours", Figures("ok", 1, Lsn(up_to)))
        (run,) = runs.last(book, 10)
        return run["batches"], run["changes"]

    first = manifest_of(100, 200, "s.a", run_id="ours")
    second = manifest_of(200, 300, "s.a", "s.b", run_id="ours")
    foreign = manifest_of(300, 400, "s.a", run_id="another")
    last = manifest_of(400, 500, "s.a", run_id="ours")
    assert counted(first, up_to=200) == (1, 10)
    assert counted(second, up_to=200) == (1, 10), "registered behind the look at the figures"
    assert counted(foreign, last, up_to=500) == (3, 40)
    assert counted(up_to=500) == (3, 40)


def test_rows_older_than_they_are_kept_are_let_go_by_the_next_run(book: Ledger, generation: Generation) -> None:
    for run_id, days in (("old", KEPT_DAYS + 1), ("young", KEPT_DAYS - 1)):
        runs.note_stage(book, run_id, "drain", 1.0, failed=False)
        book.execute(
            "UPDATE tidemark.runs SET began_at = began_at - make_interval(days => %s) WHERE run_id = %s", (days, run_id)
        )
    runs.note_figures(book, "new", Figures("ok"))
    assert [run["run_id"] for run in runs.last(book, 10)] == ["new", "young"]


def test_the_newest_look_that_found_nothing_counts_and_the_status_has_it(book: Ledger, generation: Generation) -> None:
    assert runs.level_at(book) is None
    runs.note_level(book, "shop_capture/1", NOW)
    runs.note_level(book, "shop_capture/1", NOW - timedelta(minutes=9))
    runs.note_level(book, "shop_capture/2", NOW - timedelta(minutes=5))
    assert runs.level_at(book) == NOW
    status = overview.read(book)
    assert status is not None
    assert status.level_at == NOW


def test_runs_are_put_together_by_stretches_of_time(book: Ledger, generation: Generation) -> None:
    for number, (minutes, verdict, lag_s) in enumerate([(61, "red", 5.0), (59, "ok", 9.0), (2, "ok", 1.0)]):
        runs.note_figures(book, f"shop_capture/{number}", Figures(verdict, lag_s=lag_s, retained_bytes=number))  # type: ignore[arg-type]
        book.execute(
            "UPDATE tidemark.runs SET ended_at = %s, changes = 10 WHERE run_id = %s",
            (NOW - timedelta(minutes=minutes), f"shop_capture/{number}"),
        )
    runs.note_stage(book, "shop_backfill/1", "drain", 1.0, failed=False)
    older, newer = runs.stretches(book, NOW - timedelta(hours=2), 3600)
    assert (older["changes"], older["lag_s"], older["retained_bytes"]) == (10, 5.0, 0)
    assert (newer["changes"], newer["lag_s"], newer["retained_bytes"]) == (20, 9.0, 2)


def test_of_each_dag_the_newest_run_says_why_it_failed(book: Ledger, generation: Generation) -> None:
    runs.note_stage(book, "shop_capture/1", "drain", 1.0, failed=True, error="the disk is full")
    assert [(run.dag, run.stage, run.error) for run in runs.failed(book)] == [
        ("shop_capture", "drain", "the disk is full")
    ]
    runs.note_at_work(book, "shop_capture/1", "drain")
    runs.note_at_work(book, "shop_capture/1", "merge")
    assert runs.failed(book) == [], "a later try is at work"
    runs.note_stage(book, "shop_capture/1", "drain", 1.0, failed=True, error="the disk is full")
    runs.note_stage(book, "shop_verify/1", "plan", 1.0, failed=True, error="no")
    runs.note_stage(book, "shop_verify/1", "plan", 1.0, failed=False)
    runs.note_stage(book, "shop_capture/2", "drain", 0.001, failed=False)
    assert runs.failed(book) == []
