"""What is not as it should be, judged from records alone: nothing here has a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidemark.config import Alerts, Follow, Merge, PipelineConfig, TableRule
from tidemark.errors import SlotMissing
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured.table_errors import TableError, TableErrors
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.observations.overview import OpenBackfill, PipelineStatus, TableStatus
from tidemark.ledger.observations.runs import FailedRun
from tidemark.ledger.reading.backfill_progress import Progress
from tidemark.ledger.reading.proofs import Verified
from tidemark.ledger.staged.generations import Generation
from tidemark.ledger.staged.unapplied_changes import Backlog
from tidemark.lsn import Lsn
from tidemark.observe.health import KINDS, LINE_CHARACTERS, SEVERITIES, STANDSTILL_S, Health, judge
from tidemark.schema.table_life import TableLife
from tidemark.source.wal.slot import SlotState

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
CONFIG = PipelineConfig("shop", "c", "s", "p", True, (TableRule("shop.*"),), "/lake", "l", path="shop.yaml")
ERROR = ErrorRecord("TargetDiffers", "FIX_TARGET", "The Delta table has other columns. Undo that.")


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


def a_table(
    name: str, *, merge: str = "merging", target: str = "complete", capture: str = "captured", **columns: Any
) -> TableStatus:
    """Of `columns` those of TableStatus, of TableRow, and `waiting_*`, what is staged and not merged."""
    of_status = {key: columns.pop(key) for key in tuple(columns) if key in TableStatus.__slots__}
    waiting = {key.removeprefix("waiting_"): columns.pop(key) for key in tuple(columns) if key.startswith("waiting_")}
    nothing = {"changes": 0, "bytes": 0, "since": NOW, "has_chunks": False, "is_of_the_past": False}
    backlog = Backlog(**{"table": name, **nothing, **waiting}) if waiting else None
    row = TableRow(
        **{
            "table": name,
            "life": TableLife(capture, merge, target),
            "state_since": ago(hours=3),
            "join_horizon": None,
            "backfill_kind": None,
            "backfill_reason": "it had rows before it was captured" if target != "complete" else None,
            "backfill_since": ago(hours=2) if target != "complete" else None,
            "marks": 0,
            "error": ERROR if merge == "parked" else None,
            "error_at": None,
            "failed_runs": 0,
            "paused_by": None,
            "holes": {},
            "hole_keys": [],
            "looked_at": None,
            **columns,
        }
    )
    verified = Verified(30, 30, Lsn(5), ago(days=9), ())
    lsns = {"history_lsn": None, "current_lsn": None, "applied_lsn": Lsn(9), "lag_bytes": 0}
    return TableStatus(**{"row": row, **lsns, "backlog": backlog, "verified": verified, **of_status})


def a_backfill(table: str, *, done: bool = False, read_by: str | None = None, **changes: Any) -> OpenBackfill:
    progress = Progress("b1", table, "chunks", "open", "run", 4, 4 if done else 1, 3, 0, 0, 100, 900, 1.0, None)
    return OpenBackfill(
        **{
            "purpose": "fill",
            "progress": progress,
            "opened_at": ago(hours=9),
            "active_at": ago(minutes=1),
            "read_by": read_by,
            "filled": (),
            **changes,
        }
    )


def a_ledger(*tables: TableStatus, heartbeat_at: datetime | None = None, **changes: Any) -> PipelineStatus:
    generation = Generation(
        1, "7", 1, "s", Lsn(1), Lsn(9), Lsn(9), Lsn(9), heartbeat_at or ago(minutes=4), ago(days=30), "first"
    )
    return PipelineStatus(
        **{
            "pipeline": "shop",
            "generation": generation,
            "confirmable_lsn": Lsn(9),
            "held_back_by": {},
            "batches": 3,
            "last_committed_at": None,
            "tables": tables,
            "leases": {},
            "backfills": (),
            "table_errors": (),
            "maintenance": None,
            **changes,
        }
    )


def a_slot(**changes: Any) -> SlotState:
    plain = {"retained_bytes": 2**20, "wal_status": "reserved", "safe_wal_size": None}
    nothing = dict.fromkeys(("active_pid", "restart_lsn", "confirmed_lsn", "invalidation_reason"))
    flags = dict.fromkeys(("temporary", "two_phase", "failover", "synced"), False)
    names = {"name": "s", "plugin": "pgoutput", "slot_type": "logical", "database": "d"}
    return SlotState(**{**names, **nothing, **flags, **plain, **changes})


def judged(*tables: TableStatus, config: PipelineConfig = CONFIG, **changes: Any) -> Health:
    return judge(config, a_ledger(*tables, **changes), now=NOW)


def kinds(health: Health) -> list[tuple[str, str]]:
    return [(concern.kind, concern.severity) for concern in health.concerns]


def test_a_table_at_rest_is_ok_and_its_pipeline_exact() -> None:
    health = judged(a_table("shop.orders"))
    assert kinds(health) == []
    assert (health.worst, health.line, health.states) == (None, "shop: every table is exact", {"shop.orders": "exact"})


@pytest.mark.parametrize(
    ("table", "state", "expected"),
    [
        (a_table("s.a", merge="parked"), "parked", [("parked", "red")]),
        (a_table("s.a", target="existing_rows"), "needs a backfill", [("needs a backfill", "warning")]),
        (a_table("s.a", target="needs_backfill"), "needs a backfill", [("needs a backfill", "red")]),
        (a_table("s.a", target="holes"), "needs a backfill", [("needs a backfill", "red")]),
        (
            a_table("s.a", merge="parked", target="needs_backfill"),
            "parked",
            [("parked", "red"), ("needs a backfill", "red")],
        ),
        (a_table("s.a", failed_runs=2, error=ERROR), "failed 2 runs", [("failed", "warning")]),
        (a_table("s.a", waiting_batches=1, waiting_since=ago(minutes=50)), "behind", [("behind", "note")]),
        (a_table("s.a", waiting_batches=1, waiting_since=ago(minutes=61)), "behind", [("behind", "red")]),
        (a_table("s.a", merge="deferred"), "exact", []),
        (
            a_table("s.a", merge="paused", waiting_batches=9, waiting_since=ago(days=2)),
            "paused",
            [("paused", "warning")],
        ),
        (a_table("s.a", capture="left", merge="parked", target="needs_backfill"), "not captured", []),
        (a_table("s.a", unfit={"at": 3}), "unfit values", [("unfit values", "warning")]),
        (a_table("s.a", verified=None), "exact", [("unproven", "note")]),
        (a_table("s.a", verified=Verified(30, 7, None, None, ())), "exact", [("unproven", "note")]),
        (a_table("s.a", verified=Verified(3, 3, Lsn(1), ago(days=61), ())), "exact", [("proof is old", "warning")]),
        (a_table("s.a", verified=Verified(3, 3, Lsn(1), ago(days=1), ("2 rows",))), "differs", [("differs", "red")]),
        (a_table("s.a", capture="joining"), "joining", [("joining", "warning")]),
        (a_table("s.a", capture="joining", target="holes"), "needs a backfill", [("needs a backfill", "red")]),
    ],
)
def test_what_is_not_exact_is_a_concern_of_its_kind(
    table: TableStatus, state: str, expected: list[tuple[str, str]]
) -> None:
    health = judged(table, a_table("s.b"))
    assert (kinds(health), health.states["s.a"]) == (expected, state)


def test_values_that_did_not_fit_are_part_of_the_verdict() -> None:
    health = judged(a_table("s.a", unfit={"grid": 40040, "Last Seen": 1}), a_table("s.b"))
    assert (health.worst, health.line) == (
        "warning",
        'shop: exact, but for 2 columns with values that Delta\'s type cannot hold (s.a.grid, s.a."Last Seen")',
    )
    (unfit,) = health.concerns
    assert unfit.ways == (
        'To capture as text: target: {"grid": text, "Last Seen": text} for s.a in shop.yaml; '
        "the next run builds the table anew",
    )


def test_exact_proven_and_waiting_are_different_words() -> None:
    waits = a_table("s.w", waiting_batches=1, waiting_changes=2, waiting_since=ago(seconds=9))
    line = judged(a_table("s.a"), a_table("s.b", verified=None), a_table("s.c", verified=None), waits).line
    assert line == "shop: every table is exact; 1 table waits for its merge; 2 tables are not proven yet"
    assert judged(a_table("s.a")).line == "shop: every table is exact"


@pytest.mark.parametrize(
    ("days", "looked_at", "expected"),
    [
        (59, None, [("unproven", "note")]),
        (61, None, [("proof is old", "warning")]),
        (61, '{"key": ["id"], "identity": "default"}', [("proof is old", "warning")]),
        (61, '{"key": [], "identity": "full"}', [("proof is old", "warning")]),
        (61, '{"key": [], "identity": "nothing"}', []),
    ],
)
@pytest.mark.parametrize("verified", [None, Verified(30, 29, None, None, ())])
def test_what_was_never_proven_is_not_right_for_ever(
    verified: Verified | None, days: int, looked_at: str | None, expected: list[tuple[str, str]]
) -> None:
    table = a_table("s.a", verified=verified, looked_at=looked_at, state_since=ago(days=days))
    ledger = a_ledger(table)
    opened_long_ago = replace(ledger.generation, opened_at=ago(days=90))
    assert kinds(judge(CONFIG, replace(ledger, generation=opened_long_ago), now=NOW)) == expected
    assert kinds(judge(CONFIG, ledger, now=NOW)) == ([] if expected == [] else [("unproven", "note")])


@pytest.mark.parametrize(
    ("waiting", "state", "severity"),
    [
        ({"since": ago(minutes=5)}, "deferred", "note"),
        ({"since": ago(minutes=5), "changes": 20}, "behind", "note"),
        ({"since": ago(hours=11, minutes=55)}, "behind", "note"),
        ({"since": ago(hours=12, minutes=5)}, "behind", "red"),
        ({"since": ago(minutes=5), "has_chunks": True}, "behind", "note"),
    ],
    ids=["waits", "has changes enough", "is due for less than max_lag_s", "is due for longer", "has chunks"],
)
def test_what_waits_by_choice_is_late_from_when_it_is_due(waiting: dict[str, Any], state: str, severity: str) -> None:
    config = replace(CONFIG, merge=Merge(every="8h", rows=20), alerts=Alerts(max_lag_s=5 * 3600))
    waiting_fields = {f"waiting_{key}": value for key, value in {"batches": 1, **waiting}.items()}
    health = judged(a_table("s.a", merge="deferred", **waiting_fields), config=config)
    assert (kinds(health), health.states["s.a"]) == ([("behind", severity)], state)
    assert ("by choice, until" in health.concerns[0].message) == (state == "deferred")


@pytest.mark.parametrize(
    ("backfill", "expected"),
    [
        (a_backfill("s.a", read_by="reader 1"), [("being backfilled", "warning")]),
        (a_backfill("s.a", done=True), [("being backfilled", "warning")]),
        (a_backfill("s.a"), [("needs a backfill", "warning")]),
        (a_backfill("s.a", purpose="verify", read_by="reader 1"), [("needs a backfill", "warning")]),
        (
            a_backfill("s.a", read_by="reader 1", active_at=ago(seconds=STANDSTILL_S + 1)),
            [("backfill stands still", "red"), ("being backfilled", "warning")],
        ),
    ],
)
def test_what_is_being_read_is_amber_as_long_as_it_goes_on(
    backfill: OpenBackfill, expected: list[tuple[str, str]]
) -> None:
    assert kinds(judged(a_table("s.a", target="existing_rows"), backfills=(backfill,))) == expected


def test_what_the_capture_fills_by_itself_needs_nobody_unless_it_is_parked() -> None:
    auto = replace(CONFIG, auto_backfill=True)
    assert kinds(judged(a_table("s.a", target="existing_rows"), config=auto)) == [("needs a backfill", "warning")]
    parked = judged(a_table("s.a", target="existing_rows", merge="parked"), config=auto)
    assert ("needs a backfill", "red") in kinds(parked)
    assert parked.concerns[1].ways == ("First end its park; then trigger the backfill",)


def test_a_run_that_is_late_is_lag_first_and_then_no_run() -> None:
    assert kinds(judged(heartbeat_at=ago(minutes=35))) == []
    tight = replace(CONFIG, alerts=Alerts(max_lag_s=60))
    assert kinds(judged(heartbeat_at=ago(minutes=9), config=tight)) == [], "the schedule allows no less"
    assert kinds(judged(heartbeat_at=ago(minutes=11), config=tight)) == [("lag", "red")]
    assert kinds(judged(heartbeat_at=ago(minutes=19), level_at=ago(minutes=4), config=tight)) == []
    assert kinds(judged(heartbeat_at=ago(minutes=41))) == [("no run", "red")]
    assert kinds(judged(heartbeat_at=ago(days=9), config=replace(CONFIG, schedule=None))) == []


@pytest.mark.parametrize("schedule", ["0 * * * *", "@continuous"])
def test_a_pipeline_that_follows_is_judged_by_its_heartbeats_and_not_by_how_long_its_runs_are(schedule: str) -> None:
    following = replace(CONFIG, schedule=schedule, follow=Follow(every="2s"))
    assert kinds(judged(heartbeat_at=ago(minutes=16), config=following)) == []
    assert kinds(judged(heartbeat_at=ago(minutes=41), config=following)) == [("no run", "red")]
    tight = replace(following, alerts=Alerts(max_lag_s=60))
    assert kinds(judged(heartbeat_at=ago(minutes=31), config=tight)) == [("lag", "red")]


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        (a_slot(), ""),
        (a_slot(retained_bytes=400 * 2**20, safe_wal_size=624 * 2**20), ""),
        (
            a_slot(retained_bytes=600 * 2**20, safe_wal_size=424 * 2**20),
            "keeps 600 MiB of WAL, and is lost at 1024 MiB",
        ),
        (a_slot(wal_status="unreserved", safe_wal_size=0), "is about to be lost"),
        (a_slot(retained_bytes=9 * 2**30), "MiB that the pipeline allows"),
    ],
)
def test_a_slot_that_keeps_too_much_is_said_once(slot: SlotState, said: str) -> None:
    concerns = judge(CONFIG, a_ledger(), now=NOW, slot=slot).concerns
    assert [said in concern.line for concern in concerns] == ([True] if said else [])


def test_what_cannot_be_read_is_red() -> None:
    health = judge(CONFIG, None, now=NOW, unusable=SlotMissing(slot="s"), unseen={"ledger": "no route"})
    assert kinds(health) == [("cannot be seen", "red"), ("slot", "red")]
    assert health.concerns[1].line == 'The replication slot "s" does not exist at the source'


def test_the_errors_of_preflight_are_told_apart_by_what_they_bar() -> None:
    errors = (TableError("key", "It has no key.", "Add one.", "capture"),)
    entries = (TableErrors("s.a", errors, True, ago(days=1)), TableErrors("s.b", errors, False, ago(days=1)))
    assert kinds(judged(table_errors=entries)) == [("not captured", "red"), ("has an error", "red")]


def test_a_line_says_what_where_since_when_and_what_to_do_and_fits_a_screen() -> None:
    parked = judged(a_table("shop.orders", merge="parked")).concerns[0]
    assert parked.line == (
        "shop.orders is parked since 2026-11-22 09:00:00 UTC: TargetDiffers. "
        "Mend that, then: tidemark unpark shop.yaml shop.orders"
    )
    assert parked.message == ERROR.message
    many = [a_table(f"shop.a_long_name_{n:03}", merge="parked") for n in range(200)]
    health = judged(*many, a_table("shop.stock", target="existing_rows"))
    assert health.line == (
        "shop: 200 tables are parked (shop.a_long_name_000, shop.a_long_name_001, shop.a_long_name_002, and 197 more); "
        "1 table needs a backfill (shop.stock)"
    )
    assert len(health.line) <= LINE_CHARACTERS


def test_two_tables_are_said_of_in_the_plural() -> None:
    tables = (a_table(name, capture="joining") for name in ("s.a", "s.b"))
    assert judged(*tables).line == "shop: 2 tables have joined unjudged (s.a, s.b)"


def test_the_hardest_stands_first() -> None:
    health = judged(
        a_table("s.a", verified=None),
        a_table("s.b", failed_runs=1, error=ERROR),
        a_table("s.c", target="needs_backfill"),
        a_table("s.d", merge="parked"),
    )
    assert [concern.table for concern in health.concerns] == ["s.d", "s.c", "s.b", "s.a"]
    assert [SEVERITIES.index(one.severity) for one in health.concerns] == [0, 0, 1, 2]
    assert {concern.kind for concern in health.concerns} <= set(KINDS)


def test_why_the_last_run_failed_is_said_at_once_and_is_no_verdict_of_its_own() -> None:
    full = FailedRun("shop_capture", "drain", "There is no space left on the disk of the lake /lake. Free some.", ago())
    red = FailedRun("shop_capture", "health", "shop.orders is parked", ago())
    typed = FailedRun("shop_backfill", "plan", "There is no table shop.ordres", ago())
    health = judged(a_table("s.a"), failed_runs=(full, red, typed))
    assert kinds(health) == [("run failed", "warning")]
    assert health.line.startswith(
        "shop: the last run of shop_capture failed in drain: There is no space left on the disk"
    )
