"""A pipeline `shop` of five hundred tables in a ledger and a slot at a source, in every state that the page can show.

Nothing was captured: rows of the ledger and a slot are all that page and command line read. The figures of runs follow
a day's curve, so that a plot of them looks like one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg.types.json import Jsonb

from tests.support.manifests import schema_of
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger.captured import backfill_marks, joins, merge_states, put_aside, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.migrations import migrate
from tidemark.lsn import Lsn, WalPoint
from tidemark.names import TableName
from tidemark.source.wal.slot_server import system_identifier

SCHEMAS = ("shop", "stock", "billing", "people", "shipping")
NOUNS = (
    *(
        "orders",
        "order_lines",
        "customers",
        "addresses",
        "products",
        "prices",
        "payments",
        "refunds",
        "carts",
        "visits",
    ),
    *("coupons", "returns", "suppliers", "invoices", "ledgers", "shifts", "parcels", "routes", "depots", "reviews"),
)
YEARS = ("", "_2022", "_2023", "_2024", "_2025")
SCRIPT = "<script>window.hacked=1</script>"

PARKED = "shop.orders"
PAUSED = "shop.prices"
UNFILLED = "billing.invoices_2022"
READ = "stock.products"
DIFFERING = "people.customers"
PUT_ASIDE = "shop.baskets"

NOT_FOLLOWED = ErrorRecord(
    "SchemaNotFollowed",
    "FIX_TARGET",
    'The definition of table shop.orders changed in a way that is not followed: column "total" changed from '
    "numeric(12,2) (decimal(12,2)) to text (string). Bring the target's two tables to the new shape, or begin anew.",
)


def names(count: int = 500) -> list[str]:
    """`count` ids of tables, with one whose name is markup."""
    every = [f"{schema}.{noun}{year}" for year in YEARS for noun in NOUNS for schema in SCHEMAS]
    return [*every[: count - 1], str(TableName("shop", SCRIPT))]


@dataclass(frozen=True, slots=True)
class World:
    """Where it all stands: `now` is when it was made."""

    now: datetime
    start: Lsn
    staged: Lsn
    system_identifier: str


def make(source: str, ledger: str, pipeline: str = "shop", count: int = 500) -> World:
    """Fill a source and a ledger, both empty databases, with the pipeline."""
    start, staged = _slot(source, f"tidemark_{pipeline}")
    migrate(ledger)
    with psycopg.connect(source) as connection:
        world = World(datetime.now(UTC), start, staged, system_identifier(connection))
    with open_ledger(ledger, pipeline) as book, book.transaction():
        _generation(book, world)
        _tables(book, world, names(count))
        _batches(book, world)
        _backfill(book, world)
        _proofs(book, world, names(count))
        _sizes(book, names(count))
        _runs(book, world)
        merge_states.park(book, PARKED, NOT_FOLLOWED)
        merge_states.pause(book, PAUSED, "anna")
        _put_aside(book)
        _merge(book)
        backfill_marks.mark(book, UNFILLED, backfill_marks.EXISTING_ROWS, "it had rows before it was captured")
    return world


def _merge(book: Ledger) -> None:
    """The last merge of a table: by the driver, after an error at what it began with."""
    why, way = {"changes": "50 changes in 1 batch", "chunks": "40 of their rows are new"}, {"changes": "driver"}
    result = TableResult(
        PARKED, None, None, way={**way, "chunks": "files"}, why=why, fall_backs=("changes: driver: OSError",)
    )
    book.execute(
        """
        INSERT INTO tidemark.plans (pipeline, plan, generation, run_id, holder, path, tables, result, ingested_at)
        VALUES (%s, 'p1', 1, 'shop_capture/manual__1', 'h1', 'plan.json', %s, %s, now())
        """,
        (
            book.pipeline,
            Jsonb({PARKED: "0/1"}),
            Jsonb(json.loads(PlanResult("p1", book.pipeline, 1, (result,)).to_json())),
        ),
    )


def _put_aside(book: Ledger) -> None:
    """A dropped table, whose name another one has by now."""
    tables.add(book, PUT_ASIDE)
    joins.join(book, PUT_ASIDE, 7, WalPoint(1, Lsn(0)), backfill=None)
    joins.leave(book, PUT_ASIDE)
    joins.forget(book, PUT_ASIDE)
    put_aside.note(book, PUT_ASIDE, TableName.parse(PUT_ASIDE), Lsn(0x1A2B3C4))


def _slot(source: str, slot: str) -> tuple[Lsn, Lsn]:
    with psycopg.connect(source, autocommit=True) as connection:
        row = connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
        ).fetchone()
        assert row is not None
        for _ in range(40):
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000))")
        now = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert now is not None
    start = Lsn.parse(row[0])
    return start, Lsn(start + (Lsn.parse(now[0]) - start) * 9 // 10)


def _generation(book: Ledger, world: World) -> None:
    book.execute("INSERT INTO tidemark.pipelines (pipeline) VALUES (%s)", (book.pipeline,))
    book.execute(
        """
        INSERT INTO tidemark.generations
               (pipeline, number, system_identifier, timeline, slot, start_lsn, staged_lsn, confirmed_lsn,
                heartbeat_lsn, heartbeat_at, opened_by, reason, batches, registered_at, last_committed_at)
        VALUES (%s, 1, %s, 1, %s, %s, %s, %s, %s, %s, 'preflight', 'the slot was created', 3, %s, %s)
        """,
        (
            *(book.pipeline, world.system_identifier, f"tidemark_{book.pipeline}"),
            *(world.start, world.staged, world.start, world.staged),
            *(world.now - timedelta(seconds=70), world.now, world.now),
        ),
    )


def _tables(book: Ledger, world: World, every: list[str]) -> None:
    tables.add(book, *every)
    book.execute(
        "UPDATE tidemark.tables SET captured = true, join_horizon = 7, state_since = %s WHERE pipeline = %s",
        (world.now - timedelta(days=40), book.pipeline),
    )
    book.execute(
        """
        INSERT INTO tidemark.positions (pipeline, generation, "table", history_lsn, current_lsn, risen_at)
        SELECT %s, 1, t, %s, %s, %s - n * interval '97 seconds'
          FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n)
        """,
        (book.pipeline, world.staged, world.staged, world.now, every),
    )
    book.execute(
        """
        UPDATE tidemark.tables SET changed_at = %s - n * interval '97 seconds'
          FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n) WHERE pipeline = %s AND "table" = t
        """,
        (world.now, every, book.pipeline),
    )
    for version, columns in ((1, ("id", "total")), (2, ("id", "total", "currency"))):
        definitions = [json.dumps(schema_of(table, version, columns).to_json()) for table in every]
        book.execute(
            """
            INSERT INTO tidemark.schema_versions
                   (pipeline, "table", version, definition, generation, start_lsn, streamed)
            SELECT %s, t, %s, definition::jsonb, 1, %s, true FROM unnest(%s::text[], %s::text[]) AS u (t, definition)
            """,
            (book.pipeline, version, world.start, every, definitions),
        )


def _batches(book: Ledger, world: World) -> None:
    """Three batches that wait, of six tables."""
    step = (world.staged - world.start) // 4
    waiting = (PARKED, PAUSED, "stock.orders", "stock.payments", "billing.payments", "shop.carts")
    for number in range(3):
        begin, end = Lsn(world.staged - (3 - number) * step), Lsn(world.staged - (2 - number) * step)
        at = world.now - timedelta(minutes=5 * (3 - number))
        book.execute(
            """
            INSERT INTO tidemark.batches
                   (pipeline, generation, start_lsn, end_lsn, attempt, run_id, manifest, created_at, registered_at,
                    changes, bytes, transaction_count, skipped_messages)
            VALUES (%s, 1, %s, %s, 'a', %s, 'm', %s, %s, 60000, 6000000, 9, 0)
            """,
            (book.pipeline, begin, end, f"run{number}", at, at),
        )
        book.execute(
            """
            INSERT INTO tidemark.batch_tables
                   (pipeline, generation, "table", start_lsn, end_lsn, files, counts, converted, unchanged, moved,
                    changes, bytes, first_committed_at)
            SELECT %s, 1, t, %s, %s, '[]', jsonb_build_object('insert', 1000 * n * n), '{}', 0, 0, 1000 * n * n,
                   100000 * n, %s
              FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n)
            """,
            (book.pipeline, begin, end, at - timedelta(minutes=1), list(waiting)),
        )
    book.execute(
        "INSERT INTO tidemark.unfit_values VALUES (%s, %s, 1, 'total', 9)",
        (book.pipeline, PARKED),
    )
    book.execute(
        """
        UPDATE tidemark.positions SET history_lsn = %s, current_lsn = %s WHERE pipeline = %s AND "table" = ANY(%s)
        """,
        (Lsn(world.staged - 3 * step), Lsn(world.staged - 3 * step), book.pipeline, list(waiting)),
    )


def _backfill(book: Ledger, world: World) -> None:
    """One that is being read, with half of its ranges done."""
    book.execute(
        """
        INSERT INTO tidemark.backfills (pipeline, backfill, "table", generation, timeline, mode, chunk_rows, run_id,
                                        snapshot, estimated_rows, sweeps, opened_at)
        VALUES (%s, 'b1', %s, 1, 1, 'chunks', 100000, 'manual__1', '10:10:', 48000000, true, %s)
        """,
        (book.pipeline, READ, world.now - timedelta(hours=2)),
    )
    for number in range(1, 5):
        book.execute(
            "INSERT INTO tidemark.ranges (pipeline, backfill, range, done) VALUES (%s, 'b1', %s, %s)",
            (book.pipeline, number, number < 3),
        )
        book.execute(
            """
            INSERT INTO tidemark.chunks
                   (pipeline, backfill, chunk, attempt, "table", generation, range, snapshot, fingerprint, low_lsn,
                    read_lsn, timeline, files, rows, bytes, seconds, converted)
            VALUES (%s, 'b1', %s, gen_random_uuid(), %s, 1, %s, '10:10:', '{}', %s, %s, 1, '[]', 7000000, 1, 100, '{}')
            """,
            (book.pipeline, f"{number}-1", READ, number, world.start, world.start),
        )
    backfill_marks.mark(book, READ, backfill_marks.GAP, "changes between two generations may be missing")


def _proofs(book: Ledger, world: World, every: list[str]) -> None:
    """Most are proven, some days ago; one differs."""
    for part in (1, 2):
        book.execute(
            """
            INSERT INTO tidemark.parts
                   (pipeline, "table", part, key_order, estimated_rows, proven_at, proven_lsn, differing)
            SELECT %s, t, %s, '[]', 500,
                   CASE WHEN n %% 9 = 0 AND %s = 2 THEN NULL ELSE %s - n %% 28 * interval '1 day' END, %s,
                   CASE WHEN t = %s AND %s = 1 THEN 'verify v7: 3 rows are missing, 1 row differs in email (1)' END
              FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n)
            """,
            (book.pipeline, part, part, world.now, world.start, DIFFERING, part, every),
        )


def _sizes(book: Ledger, every: list[str]) -> None:
    for kind, factor in (("current", 1), ("history", 3)):
        book.execute(
            """
            INSERT INTO tidemark.delta_tables (pipeline, "table", kind, files, bytes, rows)
            SELECT %s, t, %s, 1 + n %% 40, %s * 40000 * (n * n %% 9973), 300 * (n * n %% 9973)
              FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n)
            """,
            (book.pipeline, kind, factor, every),
        )


def _runs(book: Ledger, world: World) -> None:
    with book.connection.cursor() as cursor:
        columns = (
            "pipeline, run_id, began_at, ended_at, stages, level_at, generation, staged_lsn, applied_lsn, "
            "confirmed_lsn, source_lsn, lag_bytes, lag_s, retained_bytes, limit_bytes, batches, changes, "
            "unapplied_batches, unapplied_changes, verdict, tables"
        )
        with cursor.copy(f"COPY tidemark.runs ({columns}) FROM STDIN") as copy:
            for row in _figures(book.pipeline, world):
                copy.write_row(row)


def _figures(pipeline: str, world: World) -> Iterator[tuple[object, ...]]:
    """Every five minutes of thirty days, busy by day, with an outage of two hours yesterday."""
    count = 30 * 288
    for number in range(count):
        began = world.now - timedelta(minutes=5 * (count - number))
        hour = began.hour + began.minute / 60
        busy = 0.25 + 0.75 * max(0.0, math.sin((hour - 6) / 24 * 2 * math.pi)) + 0.08 * math.sin(number * 1.7)
        away = max(0, number - (count - 300)) if count - 300 <= number < count - 276 else 0
        merge_s = 18 + 40 * busy + 6 * math.sin(number * 0.9)
        drain_s = 3 + 9 * busy + math.sin(number * 1.3)
        changes = 0 if away else int(9000 * busy + 900 * math.sin(number * 2.1) + 1000)
        lag_s = 45 + 80 * busy + 10 * math.sin(number * 1.1) + 300 * away
        retained = int(2**20 * (24 + 90 * busy + 30 * away))
        at = world.start + number
        stages = {
            name: {"s": seconds, "tries": 1, "failed": False}
            for name, seconds in (("drain", drain_s), ("merge", merge_s))
        }
        yield (
            *(
                pipeline,
                f"{pipeline}_capture/scheduled__{number}",
                began,
                began + timedelta(seconds=merge_s + drain_s + 12),
            ),
            *(json.dumps(stages), began, 1, str(Lsn(at)), str(Lsn(at)), str(Lsn(at)), str(Lsn(at))),
            *(int(lag_s * 40_000), lag_s, retained, 4 * 2**30, 1, changes, 0, 0, "ok", '{"exact": 500}'),
        )


def drop_slot(source: str, pipeline: str = "shop") -> None:
    """A database with a slot cannot be dropped."""
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (f"tidemark_{pipeline}",))
