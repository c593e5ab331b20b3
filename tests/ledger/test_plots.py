from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.formats.compaction_plan import TableCompaction
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import run_rates, runs, table_sizes
from tidemark.ledger.observations.runs import Figures
from tidemark.ledger.staged.generations import Generation

NOW = datetime.now(UTC).replace(second=0, microsecond=0)


def ran(book: Ledger, number: int, minutes: int, changes: int, retained_bytes: int) -> None:
    """A run of a minute that ended so many minutes ago, with a drain of 5 s."""
    run_id = f"shop_capture/{number}"
    runs.note_stage(book, run_id, "drain", 5.0, failed=False)
    runs.note_figures(book, run_id, Figures("ok", lag_s=float(minutes), retained_bytes=retained_bytes))
    book.execute(
        "UPDATE tidemark.runs SET began_at = %s, ended_at = %s, changes = %s WHERE run_id = %s",
        (NOW - timedelta(minutes=minutes + 1), NOW - timedelta(minutes=minutes), changes, run_id),
    )


def test_a_plot_has_a_point_for_each_run_or_for_many_and_keeps_the_peak(book: Ledger, generation: Generation) -> None:
    for number, minutes in enumerate((50, 40, 30, 20)):
        ran(book, number, minutes, changes=100 * number, retained_bytes=number)
    figures = run_rates.over_time(book, 1, NOW, points=60)
    assert figures["lag_s"] == [50.0, 40.0, 30.0, 20.0]
    assert figures["changes_min"] == [None, 10.0, 20.0, 30.0]
    assert figures["drain_s"] == [5.0] * 4
    assert figures["run_s"] == [60.0] * 4
    assert figures["at"] == [round((NOW - timedelta(minutes=m)).timestamp()) for m in (50, 40, 30, 20)]
    few = run_rates.over_time(book, 24, NOW, points=1)
    assert (few["lag_s"], few["retained_bytes"]) == ([50.0], [3])
    assert run_rates.over_time(book, 1, NOW + timedelta(hours=2)) == {name: [] for name in figures}


def test_the_present_rate_is_that_of_the_last_hours_runs(book: Ledger, generation: Generation) -> None:
    assert set(run_rates.rates(book, NOW).values()) == {None}
    ran(book, 0, 200, changes=10**9, retained_bytes=10**9)
    ran(book, 1, 40, changes=10**9, retained_bytes=1000)
    assert run_rates.rates(book, NOW)["changes_min"] is None, "one run says nothing of a rate"
    ran(book, 2, 20, changes=300, retained_bytes=2000)
    ran(book, 3, 10, changes=600, retained_bytes=2800)
    rates = run_rates.rates(book, NOW)
    assert (rates["over_s"], rates["changes_min"], rates["retained_bytes_s"]) == (1800.0, 30.0, pytest.approx(1.0))


def test_the_size_of_a_delta_table_is_that_of_the_last_maintenance_that_saw_it(
    book: Ledger, generation: Generation
) -> None:
    seen = TableCompaction("s.a", "current", 9, 3, bytes=500, rows=70)
    table_sizes.keep(book, [seen, TableCompaction("s.a", "history", 2, 2, bytes=900, rows=80)])
    table_sizes.keep(book, [TableCompaction("s.a", "current", 3, 4, bytes=600)])
    current, history = table_sizes.all_of(book)["s.a"]
    assert (current.kind, current.files, current.bytes, current.rows) == ("current", 4, 600, 70)
    assert (history.kind, history.files, history.bytes, history.rows) == ("history", 2, 900, 80)
