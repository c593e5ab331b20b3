"""What planning, reading, reporting and proving say, done as it is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sandbox.services.postgres import running
from tests.conftest import QUIET
from tests.faults.remedies.conftest import another_row
from tests.support import judge, stages
from tests.support.capture import Environment
from tests.support.remedies import Told, ends_equal
from tests.support.roles import login
from tidemark.backfill import verify_report
from tidemark.backfill.planning import plan
from tidemark.backfill.verifying import VerifyRequest
from tidemark.capture import drain as drain_module
from tidemark.config import Maintenance, TableRule
from tidemark.errors import (
    BackfillClosed,
    BackfillIsOpen,
    BackfillIsRead,
    BackfillNotApplied,
    BackfillRefused,
    BackfillTablesUnknown,
    CaptureNotBegun,
    ChangesGone,
    ClaimRefused,
    DifferencesFound,
    DifferencesRepaired,
    JoinHorizonAhead,
    JoinHorizonBlocked,
    LedgerBehindStaging,
    MaskWithoutSalt,
    NothingProven,
    ParkedKeepsStaging,
    ReadFailed,
    ReadInterrupted,
    ReadRefused,
    RowFilterInvalid,
    SchemaVersionTaken,
    SettingsChanged,
    SnapshotBeforeCleanUp,
    SnapshotExportBlocked,
    SnapshotExportFailed,
    TableUnknown,
    TidemarkError,
    VerifyRefused,
)
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import leases
from tidemark.ledger.captured import merge_states
from tidemark.ledger.reading import backfills
from tidemark.maintenance.staging_cleanup import retire
from tidemark.names import spark_identifier
from tidemark.observe.table_commands import unpark

pytestmark = pytest.mark.thorough


def plan_verify(shop: Environment, *names: str, **request: Any) -> None:
    shop.begin_run(f"verify-{next(shop.numbers)}")
    shop.verify_request = VerifyRequest(tables=names, share=Fraction(1), **request)
    stages.plan_verify(shop.stage_input())


def rewrite(shop: Environment, statement: str) -> None:
    """As somebody who writes to the lake beside Tidemark."""
    shop.spark().sql(statement.format(f"delta.{spark_identifier(judge.table_uri(shop, 'current', 'shop.item'))}"))


@pytest.mark.walks(
    "CaptureNotBegun",
    "BackfillTablesUnknown",
    "BackfillRefused",
    "RowFilterInvalid",
    "BackfillIsOpen",
    "BackfillIsRead",
    "BackfillNotApplied",
    "BackfillClosed",
    "VerifyRefused",
    "TableUnknown",
)
def test_a_form_that_was_refused_is_corrected(new_item: Callable[..., Environment], told: Told) -> None:
    shop = new_item("forms")
    shop.execute("INSERT INTO shop.item SELECT i, 'row ' || i FROM generate_series(1, 3) AS i")
    shop.run()
    shop.drop_slot()
    shop.execute(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
    shop.begin_backfill("shop.item")
    with told(CaptureNotBegun, "Run the capture DAG (", "first, to its end; then start the backfill again"):
        shop.plan()
    with pytest.raises(ChangesGone):
        shop.run()
    shop.run()
    with told(BackfillTablesUnknown, "names as the source has them, schema.table", "shop.item"):
        shop.backfill("shop.itm")
    with told(TableUnknown, "Give one of these names, as schema.table", "shop.item"):
        unpark(shop.config, "shop.itm", ledger=shop.ledger)
    with told(BackfillRefused, "Correct the form and trigger the DAG again"):
        shop.backfill("shop.item", mode="keys", keys=({"id": "no number"},))
    with told(RowFilterInvalid, "It compares captured columns with literals, now() or current_date"):
        shop.backfill("shop.item", row_filter="size > 1")
    with told(VerifyRefused, "or leave the table out of the form, and trigger the DAG again"):
        plan_verify(shop, row_filter="id > 1")
    shop.begin_backfill("shop.item", row_filter="id > 1")
    shop.plan()
    first = shop.report.run_id
    with told(BackfillIsOpen, "or trigger again with `replace`, which closes it"):
        shop.backfill("shop.item")
    shop.backfill("shop.item", replace=True)
    shop.begin_run(first)
    with told(BackfillClosed, "Start another backfill of these tables"):
        shop.reported()
    shop.begin_backfill("shop.item")
    (opened,) = shop.plan()
    (key_range,) = shop.ranges(opened)
    second = shop.report.run_id
    shop.begin_backfill("shop.item")
    with (
        leases.hold(shop.ledger, shop.config.pipeline, key_range.lease, "another reader"),
        told(BackfillIsRead, "Let it end; the retry goes on with it when nobody reads it"),
    ):
        plan(shop.task("plan", shop.report.run_id), request=shop.request, reader_wait_s=0)
    shop.begin_run(second)
    shop.read()
    with told(BackfillNotApplied, "The pipeline's next capture run claims and merges the chunks that were read"):
        shop.reported()
    shop.run()
    shop.begin_run(second)
    shop.reported()
    ends_equal(shop)


@pytest.mark.walks("JoinHorizonBlocked", "JoinHorizonAhead", "SnapshotExportBlocked", "SnapshotExportFailed")
def test_who_holds_a_transaction_open_ends_it(begun: Callable[..., Environment], told: Told, tmp_path: Path) -> None:
    with running(tmp_path / "source", 18, **{**QUIET, "max_replication_slots": "1"}) as server:
        shop = begun("horizons", server=server, join_wait_s=1)
        horizon = "UPDATE tidemark.tables SET join_horizon = {} WHERE \"table\" = 'shop.item' RETURNING 1"
        with psycopg.connect(shop.source) as writer:
            writer.execute("CREATE TABLE public.holds_an_id ()")
            shop.ledger_query(horizon.format("join_horizon + 100"))
            shop.begin_backfill("shop.item")
            with told(JoinHorizonBlocked, "commit or roll them back; the retry waits again"):
                shop.plan()
            shop.ledger_query(horizon.format("0"))
            shop.plan()
            shop.ledger_query(horizon.format(shop.one("SELECT pg_current_xact_id()::text::bigint")))
            with told(JoinHorizonAhead, "The retry reads it when they have ended"):
                shop.read()
            writer.commit()
        shop.read()
        shop.end_backfill()
        ends_equal(shop)

        shop.begin_backfill("shop.item", mode="exported_snapshot")
        shop.plan()
        with told(SnapshotExportFailed, "a free replication slot", "mode `chunks` needs neither"):
            shop.read()
        shop.backfill("shop.item", mode="chunks", replace=True)
        ends_equal(shop)
        shop.close()

    other = begun("exports", join_wait_s=1)
    other.begin_backfill("shop.item", mode="exported_snapshot")
    other.plan()
    with psycopg.connect(other.source) as writer:
        writer.execute("CREATE TABLE public.holds_an_id ()")
        with told(SnapshotExportBlocked, "Commit, roll back or end them; the retry tries again"):
            other.read()
        writer.commit()
    other.read()
    other.end_backfill()
    ends_equal(other)


GREATER = """
    CREATE OR REPLACE FUNCTION public.greater(a int, b int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN {} RETURN a > b; END $$
"""
COUNTED = """
    CREATE OPERATOR public.># (LEFTARG = int, RIGHTARG = int, FUNCTION = public.greater);
    CREATE OPERATOR CLASS public.counted FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,
        OPERATOR 4 >=, OPERATOR 5 public.>#, FUNCTION 1 btint4cmp(int, int);
    CREATE TABLE shop.measured (id int NOT NULL, f float8);
    CREATE UNIQUE INDEX by_id ON shop.measured (id public.counted);
    ALTER TABLE shop.measured REPLICA IDENTITY USING INDEX by_id;
    INSERT INTO shop.measured SELECT i, i / 3.0::float8 FROM generate_series(1, 50) AS i;
    ANALYZE shop.measured
"""


@pytest.mark.walks("ReadRefused", "ReadFailed", "ReadInterrupted", "SettingsChanged", "MaskWithoutSalt")
def test_what_keeps_a_reader_from_its_rows_is_put_right_at_the_source(
    new_item: Callable[..., Environment], told: Told
) -> None:
    shop = new_item("rights")
    shop.execute("INSERT INTO shop.item SELECT i, 'row ' || i FROM generate_series(1, 30) AS i")
    shop.execute(GREATER.format("PERFORM pg_catalog.set_config('extra_float_digits', '-15', true);"), COUNTED)
    shop.run()
    shop.begin_backfill("shop.measured", chunk_rows=10, readers=1)
    shop.plan()
    shop.read()
    name_it = "start a backfill that names the table"
    _ends_unread(shop, told, SettingsChanged, "Look for a function at the source that sets them", name_it)
    shop.execute(GREATER.format("RAISE data_exception;"))
    shop.begin_backfill("shop.measured", "shop.item", chunk_rows=10, readers=1)
    shop.plan()
    shop.read()
    _ends_unread(shop, told, ReadFailed, "Look up the SQLSTATE", "SQLSTATE 22000", "Correct it at the source", name_it)
    current = judge.read(shop, "current", "shop.item")
    assert current is not None
    assert len(current.rows()) == 30
    shop.execute(GREATER.format("PERFORM pg_cancel_backend(pg_backend_pid());"))
    shop.begin_backfill("shop.measured", chunk_rows=10, readers=1)
    shop.plan()
    with told(ReadInterrupted, "The retry reads it again from its beginning", "find out who cancels it"):
        shop.read()
    shop.execute(GREATER.format(""))
    shop.read()
    shop.end_backfill()

    whole, role = shop.source, f"reader_{shop.config.pipeline}"
    shop.execute(login(role, whole, "REPLICATION"), f"GRANT USAGE ON SCHEMA shop TO {role}")
    shop.execute(
        f"GRANT SELECT ON shop.item, shop.measured TO {role}", "ALTER TABLE shop.item ENABLE ROW LEVEL SECURITY"
    )
    shop.begin_backfill("shop.item")
    shop.plan()
    shop.source = make_conninfo(whole, user=role)
    try:
        shop.read()
        shop.source = whole
        _ends_unread(
            shop, told, ReadRefused, "if row-level security hides rows from it, ALTER ROLE … BYPASSRLS", name_it
        )
        shop.execute(f"ALTER ROLE {role} BYPASSRLS")
        shop.begin_backfill("shop.item")
        shop.source = make_conninfo(whole, user=role)
        shop.plan()
        shop.read()
        shop.source = whole
        shop.end_backfill()
    finally:
        shop.source = whole
        shop.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    shop.execute("ALTER TABLE shop.item DISABLE ROW LEVEL SECURITY")
    ends_equal(shop)

    masked = new_item("salts", TableRule("shop.item", mask={"note": "sha256"}))
    masked.run()
    another_row(masked)
    masked.begin_run()
    with told(MaskWithoutSalt, "to a connection whose password is the salt"):
        stages.drain(dataclasses.replace(masked.stage_input(), salt=None))
    ends_equal(masked)


def _ends_unread(shop: Environment, told: Told, leaf: type[TidemarkError], *advice: str) -> None:
    """The run merges what was read, and its last task says why one table was not."""
    with pytest.raises(BackfillClosed) as closed:
        shop.end_backfill()
    told.read(leaf.__name__, str(closed.value), *advice)


@pytest.mark.walks("DifferencesFound", "DifferencesRepaired", "NothingProven")
def test_differences_are_repaired_by_either_way(begun: Callable[..., Environment], told: Told) -> None:
    shop = begun("differ")
    rewrite(shop, "DELETE FROM {} WHERE id = 2")
    shop.verify("shop.item")
    with told(DifferencesFound, "Trigger ", "_verify with these tables, share 1 and `repair`, or a backfill of them"):
        verify_report.report(shop.task("report", shop.report.run_id))
    shop.verify("shop.item", repair=True)
    with told(DifferencesRepaired, "They are equal now"):
        verify_report.report(shop.task("report", shop.report.run_id))
    ends_equal(shop)
    rewrite(shop, "UPDATE {} SET note = 'not so' WHERE id = 1")
    shop.verify("shop.item")
    with pytest.raises(DifferencesFound):
        verify_report.report(shop.task("report", shop.report.run_id))
    shop.backfill("shop.item")
    ends_equal(shop)

    plan_verify(shop, "shop.item")
    verify = shop.report.run_id
    shop.read()
    shop.drain()
    shop.execute("ALTER TABLE shop.item ALTER note TYPE text USING upper(note)")
    shop.run()
    shop.begin_run(verify)
    with told(NothingProven, "If one needs a backfill, start it; the next run of", "takes these parts first"):
        verify_report.report(shop.task("report", verify))
    shop.backfill()
    assert shop.verify("shop.item").tables[0].unproven is None
    ends_equal(shop)


@pytest.mark.walks("LedgerBehindStaging", "ParkedKeepsStaging", "SnapshotBeforeCleanUp")
def test_a_clean_up_goes_on_once_the_capture_ran_or_the_park_ended(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("cleaned", TableRule("shop.*"), parked_bytes=1)
    shop.config = dataclasses.replace(shop.config, maintenance=Maintenance(staging_days=7))
    error = ErrorRecord("TargetDiffers", "FIX_TARGET", "somebody changed it")
    another_row(shop)
    shop.begin_run()
    shop.drain()
    with shop.ledger_connection() as book:
        merge_states.park(book, "shop.item", error)
    shop.confirm()
    shop.ledger_query("UPDATE tidemark.batches SET registered_at = registered_at - interval '8 days'")
    with told(
        ParkedKeepsStaging,
        "remove the cause and unpark it",
        "The next maintenance then removes the staging that they kept",
    ):
        retire(shop.task("retire"))
    assert unpark(shop.config, "shop.item", ledger=shop.ledger)[1]
    shop.run()
    shop.ledger_query("UPDATE tidemark.batches SET registered_at = registered_at - interval '8 days'")
    retire(shop.task("retire"))
    ends_equal(shop)

    shop.ledger_query("UPDATE tidemark.generations SET retired_lsn = NULL")
    with told(LedgerBehindStaging, "_capture run first: it brings the ledger level with staging"):
        retire(shop.task("retire"))
    another_row(shop)
    shop.run()
    retire(shop.task("retire"))

    shop.begin_backfill("shop.item")
    marked = shop.ledger_query("SELECT retired_xid FROM tidemark.generations")
    shop.ledger_query("UPDATE tidemark.generations SET retired_xid = 2000000000")
    with told(SnapshotBeforeCleanUp, "The retry takes a new snapshot"):
        shop.plan()
    shop.ledger_query("UPDATE tidemark.generations SET retired_xid = %s", marked[0][0])
    shop.plan()
    shop.read()
    shop.end_backfill()
    ends_equal(shop)


@pytest.mark.walks("ClaimRefused", "SchemaVersionTaken")
def test_a_batch_that_was_not_registered_is_registered_by_the_retry(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("claims")
    real = drain_module.reach

    def before_register(action: Callable[[], None]) -> None:
        def act(name: str) -> None:
            if name == "drain.before_register":
                monkeypatch.setattr(drain_module, "reach", real)
                action()
            real(name)

        monkeypatch.setattr(drain_module, "reach", act)

    def close() -> None:
        with shop.ledger_connection() as book:
            backfills.close(book, opened.backfill, "somebody replaced it")

    shop.begin_backfill("shop.item")
    (opened,) = shop.plan()
    shop.read()
    before_register(close)
    with told(ClaimRefused, "The retry registers the batch as it was staged"):
        shop.drain()
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)

    shop.begin_backfill("shop.item")
    shop.plan()
    reading = shop.report
    shop.execute("ALTER TABLE shop.item ADD c int", "INSERT INTO shop.item VALUES (20, 'x', 3)")

    def read() -> None:
        draining, shop.report = shop.report, reading
        shop.execute("ALTER TABLE shop.item ADD d int", "INSERT INTO shop.item VALUES (21, 'y', 4, 5)")
        shop.read()
        shop.report = draining

    shop.begin_run()
    before_register(read)
    with told(SchemaVersionTaken, "The retry removes the batch", "drains it again under the next number"):
        shop.drain()
    shop.drain()
    shop.merge()
    shop.confirm()
    shop.report = reading
    shop.end_backfill()
    ends_equal(shop)
