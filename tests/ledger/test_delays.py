"""How long changes took to their Delta table, by what the ledger has of batches and plans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.manifests import manifest_of, plan_of
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger import leases
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import delays
from tidemark.ledger.staged import batches, plans
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

NOW = datetime.now(UTC)


def merged(ledger: str, book: Ledger, lease: Lease, end: int, seconds: float) -> None:
    """A batch of one table whose oldest change took so long to be applied; each is a hundred long."""
    manifest = manifest_of(end - 100, end, "s.a")
    batches.register(book, lease, manifest, f"shop/{end}/manifest.json")
    plan = plan_of(f"p{end}", manifest)
    with leases.hold(ledger, "shop", "table:s.a", "merge") as of_table:
        plans.record(book, of_table, plan, run_id="run", path=f"shop/plans/p{end}/plan.json")
    result = TableResult("s.a", Lsn(end), Lsn(end))
    assert plans.ingest(book, PlanResult(plan=plan.plan, pipeline="shop", generation=1, tables=(result,)))
    book.execute(
        "UPDATE tidemark.batch_tables SET first_committed_at = %s WHERE end_lsn = %s::pg_lsn",
        (NOW - timedelta(seconds=seconds), str(Lsn(end))),
    )
    book.execute("UPDATE tidemark.plans SET ingested_at = %s WHERE plan = %s", (NOW, plan.plan))


def test_median_and_worst_hundredth_are_of_what_was_merged_in_the_last_hour(
    ledger: str, book: Ledger, lease: Lease, generation: Generation
) -> None:
    assert delays.present(book, NOW) is None
    for number, seconds in enumerate((100, 2, 3, 4, 9), start=2):
        merged(ledger, book, lease, number * 100, seconds)
    found = delays.present(book, NOW)
    assert found is not None
    # The first plan's own beginning lies before what is looked at.
    assert (found.batches, found.p50_s) == (4, 3.5)
    assert found.p99_s == pytest.approx(8.85)
    assert delays.present(book, NOW + timedelta(hours=2)) is None
