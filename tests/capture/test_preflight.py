"""Preflight against real servers: what the first run creates, what later ones follow, what each finding says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from standalone.postgres import PostgresServer, wait_for
from tests.conftest import create_database, drop_database
from tidemark.capture import generation as generation_module
from tidemark.capture.preflight import preflight
from tidemark.capture.recovery import staged_generations
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.errors import (
    ChangesGone,
    LeaseLost,
    Move,
    PreflightFailed,
    PreflightWaits,
    SlotCreationBlocked,
    SourceLocked,
)
from tidemark.findings import Report
from tidemark.ledger import connection as ledger_sessions
from tidemark.ledger import generations, leases
from tidemark.ledger import tables as ledger_tables
from tidemark.ledger.tables import TableRow
from tidemark.source import connection as source_sessions
from tidemark.staging.store import Store

_numbers = itertools.count(1)


@dataclass
class Shop:
    """A pipeline with a source and a ledger of its own. `settings` are added to the source's connection string."""

    server: PostgresServer
    source: str
    ledger: str
    config: PipelineConfig
    connections: list[psycopg.Connection[Any]] = field(default_factory=list)

    def sql(self, *statements: str) -> list[Any]:
        """Run statements as superuser; the last one's rows."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            for statement in statements:
                done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def open(self) -> psycopg.Connection[Any]:
        """A session that stays, for transactions that are in the way."""
        self.connections.append(psycopg.connect(self.source))
        return self.connections[-1]

    def preflight(self, source: str | None = None, **options: Any) -> Report:
        return preflight(self.config, source=source or self.source, ledger=self.ledger, **options)

    def sound(self, **options: Any) -> Report:
        """A preflight that must find no error."""
        report = self.preflight(**options)
        assert not report.errors, str(report)
        return report

    def with_tables(self, *rules: TableRule | str) -> None:
        entries = tuple(rule if isinstance(rule, TableRule) else TableRule(rule, line=3) for rule in rules)
        self.config = replace(self.config, tables=entries)

    def with_bounds(self, **bounds: int) -> None:
        self.config = replace(self.config, bounds=replace(self.config.bounds, **bounds))

    def published(self) -> set[str]:
        rows = self.sql(f"SELECT tablename FROM pg_publication_tables WHERE pubname = '{self.config.publication}'")
        return {name for (name,) in rows}

    def rows(self) -> dict[str, TableRow]:
        with ledger_sessions.connect(self.ledger) as ledger:
            return {row.table: row for row in ledger_tables.all_of(ledger, self.config.pipeline)}

    def generation(self) -> generations.Generation | None:
        with ledger_sessions.connect(self.ledger) as ledger:
            return generations.current(ledger, self.config.pipeline)

    def settled(self) -> generations.Generation:
        """What the first task that judges the slot goes on with."""
        with (
            leases.hold(self.ledger, self.config.pipeline, leases.SLOT, "drain", wait_s=10) as lease,
            source_sessions.connect(self.source, application_name="drain") as source,
            ledger_sessions.connect(self.ledger) as ledger,
        ):
            return generation_module.settle(self.config, source, ledger, Store(self.config.lake), lease)

    def slots(self) -> list[str]:
        return [
            name
            for (name,) in self.sql(
                f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{self.config.slot}'"
            )
        ]


@pytest.fixture(scope="module", params=[16, 18])
def databases(request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str, str]]:
    """A server with a source and a ledger; each test has a pipeline of its own, and empties the source."""
    server: PostgresServer = request.getfixturevalue({16: "postgres16", 18: "postgres"}[request.param])
    source, ledger = create_database(server, "source"), create_database(server, "ledger")
    yield server, source, ledger
    drop_database(server, source)
    drop_database(server, ledger)


since_18 = pytest.mark.parametrize("databases", [18], indirect=True)


@pytest.fixture
def shop(databases: tuple[PostgresServer, str, str], tmp_path: Path) -> Iterator[Shop]:
    server, source, ledger = databases
    name = f"preflight_{next(_numbers)}"
    config = PipelineConfig(
        pipeline=name,
        source_connection="source",
        slot=f"tidemark_{name}",
        publication=f"tidemark_{name}",
        manage_publication=True,
        tables=(TableRule("shop.*", line=3),),
        lake=str(tmp_path / "lake"),
        ledger_connection="ledger",
        bounds=Bounds(lock_timeout_s=1),
        path="shop.yaml",
    )
    made = Shop(server, source, ledger, config)
    made.sql("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)")
    yield made
    for connection in made.connections:
        connection.close()
    made.sql(
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{config.slot}'",
        f"DROP PUBLICATION IF EXISTS {config.publication}",
        "DROP SCHEMA shop CASCADE",
        "DROP TABLE IF EXISTS public.other",
    )


def said(report: Report, check: str, severity: str = "error") -> str:
    """What the findings of one check say, remedies included."""
    return "\n".join(str(f) for f in report.findings if f.check == check and f.severity == severity)


class TestFirstRun:
    def test_it_creates_publication_slot_and_generation(self, shop: Shop) -> None:
        shop.sound()
        assert shop.published() == {"orders"}
        assert shop.slots() == [shop.config.slot]
        generation = shop.generation()
        assert generation is not None
        assert (generation.number, generation.slot) == (1, shop.config.slot)
        (options,) = shop.sql(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
            f" WHERE pubname = '{shop.config.publication}'"
        )
        assert options == (True, True)

    def test_the_second_run_changes_nothing(self, shop: Shop) -> None:
        shop.sound()
        before = (
            shop.sql("SELECT oid, xmin FROM pg_publication UNION ALL SELECT oid, xmin FROM pg_publication_rel"),
            shop.rows(),
        )
        generation = shop.generation()
        reports = [shop.sound() for _ in range(3)]
        after = (
            shop.sql("SELECT oid, xmin FROM pg_publication UNION ALL SELECT oid, xmin FROM pg_publication_rel"),
            shop.rows(),
        )
        assert after == before
        assert shop.generation() == generation
        assert not any(f.check in ("publication", "slot", "generation", "tables") for r in reports for f in r.findings)

    def test_looking_creates_nothing(self, shop: Shop) -> None:
        report = shop.sound(act=False)
        assert "Would create publication" in said(report, "publication", "note")
        assert "Would create slot" in said(report, "slot", "note")
        assert (shop.published(), shop.slots(), shop.generation()) == (set(), [], None)

    @pytest.mark.parametrize("after", ["publication", "slot", "generation"])
    def test_a_crash_between_two_steps_is_caught_up(
        self, shop: Shop, after: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.sql("INSERT INTO shop.orders VALUES (1)")
        broken = {"publication": "create_slot", "slot": "settle", "generation": "joins.join"}[after]

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"tidemark.capture.preflight.{broken}", crash)
            with pytest.raises(KeyboardInterrupt):
                shop.preflight()
        shop.sound()
        assert shop.rows()["shop.orders"].needs_backfill
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 1

    def test_a_slot_that_is_there_is_adopted(self, shop: Shop) -> None:
        shop.sql(
            f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders WITH (publish_via_partition_root)",
            f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')",
        )
        shop.sound()
        assert shop.generation() is not None

    def test_two_first_runs_at_once_make_one_of_everything(self, shop: Shop) -> None:
        reports: list[Report] = []
        threads = [threading.Thread(target=lambda: reports.append(shop.preflight())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == 2
        shop.sound()
        assert len(shop.slots()) == 1
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 1

    def test_a_try_that_was_overtaken_between_look_and_opening_opens_nothing(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = generation_module._open

        def overtaken(*given: Any) -> Any:
            monkeypatch.undo()
            shop.sound(holder="capture/1/preflight")
            return real(*given)

        monkeypatch.setattr(generation_module, "_open", overtaken)
        assert [type(f.cause) for f in shop.preflight(holder="capture/1/preflight").errors] == [LeaseLost]
        assert staged_generations(Store(shop.config.lake), shop.config.pipeline) == [1]
        assert shop.settled().number == 1

    def test_a_try_that_takes_over_waits_for_a_generation_that_is_being_opened(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the first one wrote to staging is the second one's too, never a number that is taken already."""
        looked, written = threading.Event(), threading.Event()
        again, write = generation_module.register_again, Store.write_atomic
        second = threading.Thread(target=lambda: shop.preflight(holder="capture/1/preflight"))

        def look(*given: Any) -> Any:
            found = again(*given)
            if threading.current_thread() is second:
                looked.set()
                assert written.wait(60)
            return found

        def write_late(store: Store, path: str, content: bytes) -> None:
            if path.endswith("generation.json") and threading.current_thread() is not second:
                second.start()
                with psycopg.connect(shop.ledger, autocommit=True) as witness:
                    wait_for(
                        "the second one looked, or waits",
                        lambda: (
                            looked.is_set()
                            or witness.execute(
                                "SELECT 1 FROM pg_locks l JOIN pg_stat_activity USING (pid) "
                                "WHERE NOT granted AND query LIKE '%tidemark.leases%'"
                            ).fetchone()
                        ),
                    )
            write(store, path, content)
            if path.endswith("generation.json"):
                written.set()

        monkeypatch.setattr(generation_module, "register_again", look)
        monkeypatch.setattr(Store, "write_atomic", write_late)
        shop.preflight(holder="capture/1/preflight")
        second.join()
        monkeypatch.undo()
        assert staged_generations(Store(shop.config.lake), shop.config.pipeline) == [1]
        assert shop.settled().number == 1

    def test_a_publication_that_another_try_commits_while_this_one_waits_is_taken(self, shop: Shop) -> None:
        other = shop.open()
        name = shop.config.publication
        other.execute(f"CREATE PUBLICATION {name} FOR TABLE shop.orders WITH (publish_via_partition_root)".encode())
        reports: list[Report] = []
        waiting = threading.Thread(target=lambda: reports.append(shop.preflight()))
        waiting.start()
        blocked = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        wait_for("the preflight waits for the other's transaction", lambda: shop.sql(blocked))
        other.commit()
        waiting.join()
        assert not reports[0].errors, str(reports[0])
        assert shop.published() == {"orders"}
        assert len(shop.slots()) == 1


class TestWaiting:
    def test_the_slot_waits_for_open_transactions_and_names_them(self, shop: Shop) -> None:
        shop.with_bounds(drain_stall_s=1)
        blocking = shop.open()
        blocking.execute("INSERT INTO shop.orders VALUES (1)")
        report = shop.preflight()
        assert f"process {blocking.info.backend_pid}" in said(report, "source")
        with pytest.raises(SlotCreationBlocked):
            report.raise_for_errors()
        assert shop.slots() == []
        blocking.rollback()
        shop.sound()
        assert shop.slots() == [shop.config.slot]

    def test_a_locked_table_ends_the_wait_for_the_publication(self, shop: Shop) -> None:
        blocking = shop.open()
        blocking.execute("LOCK TABLE shop.orders IN SHARE MODE")
        report = shop.preflight()
        with pytest.raises(SourceLocked, match=f"process {blocking.info.backend_pid} holds ShareLock on shop.orders"):
            report.raise_for_errors()
        assert "Created" not in str(report)
        assert shop.published() == set()


class TestRowsBeforeTheJoin:
    def test_an_empty_table_needs_no_backfill_and_a_filled_one_does(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "INSERT INTO shop.lines VALUES (1)")
        report = shop.sound()
        rows = shop.rows()
        assert not rows["shop.orders"].needs_backfill
        assert (rows["shop.lines"].needs_backfill, rows["shop.lines"].backfill_kind) == (True, "existing_rows")
        assert rows["shop.lines"].join_horizon is not None
        assert "shop.lines needs a backfill" in said(report, "backfill", "warning")

    def test_a_row_in_flight_at_the_join_is_not_taken_for_none(self, shop: Shop) -> None:
        """Its transaction began before the table was published, so its rows are in neither chunk nor stream."""
        shop.sound()
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "CREATE TABLE public.other (id int)")
        in_flight = shop.open()
        in_flight.execute("INSERT INTO public.other VALUES (1)")
        shop.sound()
        assert f"process {in_flight.info.backend_pid}" in str(shop.rows()["shop.lines"].backfill_reason)
        shop.sound()
        assert shop.rows()["shop.lines"].needs_backfill
        in_flight.execute("INSERT INTO shop.lines VALUES (1)")
        in_flight.commit()
        shop.sound()
        assert shop.rows()["shop.lines"].needs_backfill

    def test_the_mark_goes_once_the_table_was_seen_empty(self, shop: Shop) -> None:
        shop.sound()
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "CREATE TABLE public.other (id int)")
        in_flight = shop.open()
        in_flight.execute("INSERT INTO public.other VALUES (1)")
        shop.sound()
        assert shop.rows()["shop.lines"].needs_backfill
        in_flight.rollback()
        shop.sound()
        assert not shop.rows()["shop.lines"].needs_backfill

    def test_a_table_seen_empty_has_its_fingerprint_from_that_moment(self, shop: Shop) -> None:
        """What alters it before the first drain looks at it would else be what it always was (R11)."""
        shop.sound()
        before = shop.rows()["shop.orders"].fingerprint
        shop.sql("ALTER TABLE shop.orders ADD COLUMN more int DEFAULT 7")
        shop.sound()
        assert before is not None
        assert "more" not in [column["name"] for column in before["columns"]]
        assert shop.rows()["shop.orders"].fingerprint == before

    def test_a_delta_table_that_is_there_already_is_not_taken_for_empty(self, shop: Shop) -> None:
        path = f"{shop.config.pipeline}/current/shop/orders/_delta_log/00000000000000000000.json"
        Store(shop.config.lake).write_atomic(path, b"{}")
        shop.sound()
        assert shop.rows()["shop.orders"].needs_backfill


class TestFollowingTheFile:
    def test_a_table_of_the_file_joins_the_publication_and_one_taken_out_leaves_it(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "CREATE TABLE shop.carts (id int PRIMARY KEY)")
        shop.with_tables("shop.orders", "shop.lines")
        shop.sound()
        assert shop.published() == {"orders", "lines"}
        shop.with_tables("shop.orders", "shop.carts")
        report = shop.sound()
        assert shop.published() == {"orders", "carts"}
        assert "Added shop.carts" in said(report, "publication", "note")
        assert "Took shop.lines out" in said(report, "publication", "note")
        shop.sound()
        assert not shop.rows()["shop.lines"].captured
        assert shop.rows()["shop.carts"].captured

    def test_a_table_that_comes_back_needs_a_backfill_even_if_it_is_empty(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        shop.sound()
        shop.with_tables("shop.orders")
        shop.sound()
        shop.with_tables("shop.*")
        shop.sound()
        row = shop.rows()["shop.lines"]
        assert (row.captured, row.needs_backfill, row.backfill_kind) == (True, True, "rejoined")
        shop.sound()
        assert shop.rows()["shop.lines"].needs_backfill

    def test_a_table_dropped_and_created_again_needs_a_backfill(self, shop: Shop) -> None:
        shop.sound()
        shop.sql("DROP TABLE shop.orders", "CREATE TABLE shop.orders (id int PRIMARY KEY)")
        shop.sound()
        assert shop.published() == {"orders"}
        assert shop.rows()["shop.orders"].needs_backfill

    def test_a_slot_that_was_dropped_is_created_again_and_the_gap_is_said_once(self, shop: Shop) -> None:
        shop.sound()
        assert not shop.rows()["shop.orders"].needs_backfill
        shop.sql(f"SELECT pg_drop_replication_slot('{shop.config.slot}')", "INSERT INTO shop.orders VALUES (1)")
        with pytest.raises(ChangesGone):
            shop.preflight().raise_for_errors()
        assert shop.slots() == [shop.config.slot]
        shop.sound()
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 2
        row = shop.rows()["shop.orders"]
        assert row.needs_backfill
        assert row.join_horizon is not None


class TestUnmanagedPublication:
    def test_the_owners_sql_is_printed_and_works(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        report = shop.preflight()
        text = said(report, "publication")
        assert "manage_publication: false" in text
        statement = text.partition("As owner of the tables: ")[2].rstrip(".")
        shop.sql(statement)
        shop.sound()
        assert shop.slots() == [shop.config.slot]

    def test_missing_tables_are_named_with_the_statement_and_others_only_mentioned(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        shop.sql(
            "CREATE TABLE shop.lines (id int PRIMARY KEY)",
            "CREATE TABLE public.other (id int PRIMARY KEY)",
            f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders, public.other",
        )
        report = shop.preflight()
        assert f"ALTER PUBLICATION {shop.config.publication} ADD TABLE ONLY shop.lines" in said(report, "publication")
        assert "public.other" in said(report, "publication", "note")
        shop.sql(f"ALTER PUBLICATION {shop.config.publication} ADD TABLE shop.lines")
        shop.sound()
        assert shop.published() == {"orders", "lines", "other"}


class TestFindings:
    def test_all_of_them_are_said_at_once_each_with_its_remedy(self, shop: Shop) -> None:
        shop.sql(
            'CREATE TABLE shop."Mixed" (id int PRIMARY KEY, "Colour" text, colour text, _op text)',
            "CREATE TABLE shop.late (id int PRIMARY KEY DEFERRABLE)",
        )
        shop.with_tables(
            TableRule("shop.*", line=3),
            TableRule("shop.orders", mask={"id": "null"}, leave_out=("nte",), line=4),
            TableRule("shop.ordes", line=5),
        )
        report = shop.preflight(spark_master="spark://local[*]")
        text = str(report)
        for fragment in (
            "Colour, colour",
            "'_op' of shop.Mixed",
            "'id' belongs to the key of shop.orders and is masked",
            "shop.orders has no column 'nte'",
            "Did you mean 'note'?",
            "shop.ordes (line 5 of the file) does not exist",
            "Did you mean shop.orders?",
            "spark://local[*], which Spark does not know",
            "shop.late fits a pattern but is not captured",
        ):
            assert fragment in text, text
        assert all(f.remedy for f in report.errors)
        with pytest.raises(PreflightFailed, match="6 errors") as raised:
            report.raise_for_errors()
        assert raised.value.move is Move.FIX_CONFIG
        assert (shop.published(), shop.slots()) == (set(), [])

    def test_a_pattern_does_not_take_up_a_table_whose_updates_would_then_fail(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.log (what text)", "INSERT INTO shop.log VALUES ('a')")
        report = shop.sound()
        assert "shop.log fits a pattern but is not captured" in said(report, "replica_identity", "warning")
        assert shop.published() == {"orders"}
        shop.sql("UPDATE shop.log SET what = 'b'")

    def test_a_table_without_identity_that_is_named_is_history_only(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.log (what text)")
        shop.with_tables("shop.log")
        report = shop.sound()
        assert "captured as history only: it has no replica identity" in said(report, "replica_identity", "warning")
        assert shop.published() == {"log"}

    def test_full_identity_without_a_key_is_said_to_be_a_multiset(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.log (what text)", "ALTER TABLE shop.log REPLICA IDENTITY FULL")
        report = shop.sound()
        assert "multiset" in said(report, "replica_identity", "note")
        assert shop.published() == {"orders", "log"}

    def test_full_identity_with_a_generated_column_keeps_its_application_working(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.lines (id int PRIMARY KEY, price int, twice int GENERATED ALWAYS AS (price * 2) STORED)",
            "ALTER TABLE shop.lines REPLICA IDENTITY FULL",
            "INSERT INTO shop.lines VALUES (1, 2)",
        )
        shop.sound()
        assert shop.published() == {"orders", "lines"}
        shop.sql("UPDATE shop.lines SET price = 3")

    @since_18  # before it PostgreSQL accepts the updates
    def test_a_publication_under_which_updates_fail_is_an_error(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        shop.sql(
            "ALTER TABLE shop.orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED",
            "ALTER TABLE shop.orders REPLICA IDENTITY FULL",
            "INSERT INTO shop.orders VALUES (1)",
            f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders",
        )
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            shop.sql("UPDATE shop.orders SET note = 'x'")
        text = said(shop.preflight(), "replica_identity")
        assert "unpublished generated column 'twice'" in text
        shop.sql(f"ALTER PUBLICATION {shop.config.publication} SET (publish_generated_columns = stored)")
        shop.sql("UPDATE shop.orders SET note = 'x'")
        shop.sound()

    @since_18
    def test_a_virtual_generated_column_under_full_identity_is_never_published(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.lines (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL)",
            "ALTER TABLE shop.lines REPLICA IDENTITY FULL",
        )
        report = shop.sound()
        assert "virtual generated column 'twice'" in said(report, "replica_identity", "warning")
        shop.with_tables("shop.lines", "shop.orders")
        assert "virtual generated column 'twice'" in said(shop.preflight(), "replica_identity")
        assert shop.published() == {"orders"}

    def test_partitions_need_the_identity_of_their_root(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.sales (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
            "CREATE TABLE shop.sales_low PARTITION OF shop.sales FOR VALUES FROM (0) TO (10)",
        )
        report = shop.sound()
        assert shop.published() == {"orders", "sales"}
        assert "TRUNCATE of one partition of shop.sales is not replicated" in said(report, "partitions", "note")
        shop.sql("ALTER TABLE shop.sales REPLICA IDENTITY FULL")
        text = said(shop.preflight(), "replica_identity")
        assert "ALTER TABLE shop.sales_low REPLICA IDENTITY FULL" in text
        shop.sql("ALTER TABLE shop.sales_low REPLICA IDENTITY FULL")
        shop.sound()

    def test_what_cannot_be_captured_is_refused_where_it_is_named(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.sales (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE shop.sales_low PARTITION OF shop.sales FOR VALUES FROM (0) TO (10)",
            "CREATE VIEW shop.seen AS SELECT 1 AS one",
            "CREATE UNLOGGED TABLE shop.scratch (id int PRIMARY KEY)",
        )
        shop.sound()
        shop.with_tables("shop.sales_low", "shop.seen", "shop.scratch", "pg_catalog.pg_class")
        text = said(shop.preflight(), "tables")
        for fragment in ("name its root shop.sales", "it is a view", "shop.scratch is unlogged", "PostgreSQL itself"):
            assert fragment in text, text

    @pytest.mark.parametrize(
        ("options", "said_of_it"),
        [
            ("publish = 'insert, update'", "does not publish delete, truncate"),
            ("publish_via_partition_root = false", "publishes the partitions of shop.sales as tables of their own"),
        ],
    )
    def test_options_of_a_publication_that_lose_changes(self, shop: Shop, options: str, said_of_it: str) -> None:
        shop.sql("CREATE TABLE shop.sales (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders, shop.sales WITH ({options})")
        report = shop.preflight()
        assert said_of_it in said(report, "publication")
        statement = said(report, "publication").partition("-> ")[2].partition(", then")[0].rstrip(".")
        shop.sql(statement)
        assert said_of_it not in said(shop.preflight(), "publication")

    def test_a_column_list_that_lacks_the_key_breaks_the_application(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders (note)")
        shop.sql("INSERT INTO shop.orders VALUES (1)")
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            shop.sql("UPDATE shop.orders SET note = 'x'")
        assert "The column list of shop.orders lacks id" in said(shop.preflight(), "publication")

    def test_a_slot_older_than_its_publication_is_refused(self, shop: Shop) -> None:
        shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
        report = shop.preflight()
        assert "a slot older than its publication cannot be decoded" in said(report, "publication")
        assert shop.published() == set()

    @pytest.mark.parametrize(
        ("create", "said_of_it"),
        [
            ("pg_create_physical_replication_slot('{slot}')", "physical"),
            ("pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)", "two_phase"),
        ],
    )
    def test_a_slot_of_another_kind_is_refused(self, shop: Shop, create: str, said_of_it: str) -> None:
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders")
        shop.sql(f"SELECT {create.format(slot=shop.config.slot)}")
        assert said_of_it in said(shop.preflight(), "slot")
        assert shop.generation() is None

    def test_a_slot_of_another_database_is_refused(self, shop: Shop) -> None:
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders")
        with psycopg.connect(shop.ledger, autocommit=True) as other:
            other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.config.slot,))
            assert "belongs to the database" in said(shop.preflight(), "slot")
            other.execute("SELECT pg_drop_replication_slot(%s)", (shop.config.slot,))

    def test_a_lake_that_cannot_be_written_is_an_error(self, shop: Shop, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        shop.config = replace(shop.config, lake=str(tmp_path / "file" / "lake"))
        report = shop.preflight()
        assert "cannot be written" in said(report, "lake")
        assert shop.slots() == []

    def test_a_look_leaves_nothing_in_the_lake(self, shop: Shop, tmp_path: Path) -> None:
        shop.sound(act=False)
        assert [path for path in (tmp_path / "lake").rglob("*") if path.is_file()] == []

    def test_an_unreachable_source_and_an_unreachable_ledger_are_both_said(self, shop: Shop) -> None:
        report = preflight(
            shop.config, source="host=127.0.0.1 port=1 dbname=x", ledger="host=127.0.0.1 port=1 dbname=x"
        )
        assert [f.check for f in report.errors] == ["ledger", "source"]
        with pytest.raises(PreflightWaits):
            report.raise_for_errors()

    def test_row_level_security_is_said(self, shop: Shop) -> None:
        role = f"reader_{shop.config.pipeline}"
        shop.sql(
            f"CREATE ROLE {role} LOGIN REPLICATION",
            f"GRANT USAGE ON SCHEMA shop TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA shop TO {role}",
            "ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY",
        )
        try:
            report = shop.preflight(source=f"{shop.source} user={role}", act=False)
            assert "Row-level security hides rows of shop.orders" in said(report, "row_security", "warning")
        finally:
            shop.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_the_drains_own_connection_never_becomes_the_synchronous_standby(shop: Shop) -> None:
    with psycopg.connect(shop.server.conninfo(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        admin.execute("ALTER SYSTEM SET synchronous_commit = local")
        admin.execute("SELECT pg_reload_conf()")
        try:
            wait_for("the setting is read", lambda: "*" in shop.sql("SHOW synchronous_standby_names")[0][0])
            assert 'synchronous_standby_names (*) has "*"' in said(shop.preflight(), "synchronous_standby_names")
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("ALTER SYSTEM RESET synchronous_commit")
            admin.execute("SELECT pg_reload_conf()")
            wait_for("the setting is gone", lambda: "*" not in shop.sql("SHOW synchronous_standby_names")[0][0])
