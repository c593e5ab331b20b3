"""What each finding says, and its remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sandbox.services.postgres import wait_for
from tests.capture.preflight.shop import Shop, said, since_18
from tests.support.roles import login
from tests.support.runs import a_run
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import TableRule
from tidemark.errors import (
    Move,
    PreflightFailed,
    PreflightWaits,
)
from tidemark.spark_submit.spark_connection import SparkConnection


class TestFindings:
    def test_all_of_them_are_said_at_once_each_with_its_remedy(self, shop: Shop) -> None:
        shop.sql(
            'CREATE TABLE shop."Mixed" (id int PRIMARY KEY, "Colour" text, colour text, _op text, "_Old.n" text)',
            "CREATE TABLE shop.late (id int PRIMARY KEY DEFERRABLE)",
        )
        shop.with_tables(
            TableRule("shop.*", line=3),
            TableRule("shop.orders", mask={"id": "null"}, leave_out=("nte",), line=4),
            TableRule("shop.ordes", line=5),
        )
        report = shop.preflight(spark=SparkConnection("spark://local[*]"))
        text = str(report)
        for fragment in (
            "Colour, colour",
            "'_op' of shop.\"Mixed\"",
            "'_Old.n' of shop.\"Mixed\"",
            "'id' belongs to the key of shop.orders and is masked",
            "shop.orders has no column 'nte'",
            "Did you mean 'note'?",
            "shop.ordes (line 5 of the file) does not exist",
            "Correct the name, or create the table",
            "spark://local[*], which Spark does not know",
            "shop.late fits a pattern but is not captured",
        ):
            assert fragment in text, text
        assert "Did you mean shop.orders?" not in text, "the file has it already"
        assert all(f.remedy for f in (*report.errors, *report.table_errors))
        concerned = [table.name for f in report.table_errors for table in f.tables]
        assert sorted(concerned) == ["Mixed", "Mixed", "Mixed", "orders", "orders", "ordes"]
        with pytest.raises(PreflightFailed, match="2 errors") as raised:
            report.raise_for_errors()
        assert raised.value.move is Move.FIX_CONFIG
        assert (shop.published(), shop.slots()) == (set(), [])

    def test_a_run_is_told_a_note_when_it_comes_or_changes_and_not_again(self, shop: Shop) -> None:
        def told(**bounds: int) -> list[str]:
            shop.with_bounds(**bounds)
            report = shop.sound(only_new_notes=True)
            return [f.message for f in report.findings if f.check == "max_slot_wal_keep_size"]

        assert ["from 8.0 GiB on" in message for message in told()] == [True]
        assert told() == []
        assert "max_slot_wal_keep_size" in str(shop.sound()), "a person who asks is told everything"
        assert ["from 4.0 GiB on" in message for message in told(wal_valve_bytes=4 * 2**30)] == [True]
        assert told() == []

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
        text = said(shop.sound(), "replica_identity", "table")
        assert "unpublished generated column 'twice'" in text
        assert shop.table_rows()["shop.orders"].life.is_captured
        shop.sql(f"ALTER PUBLICATION {shop.config.publication} SET (publish_generated_columns = stored)")
        shop.sql("UPDATE shop.orders SET note = 'x'")
        shop.sound()

    @pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX by_key"])
    def test_a_key_with_a_generated_column_that_is_not_published_bars_its_table(
        self, shop: Shop, identity: str
    ) -> None:
        publication = shop.config.publication
        shop.sql(
            "CREATE TABLE shop.halves (a int, b int GENERATED ALWAYS AS (a / 2) STORED NOT NULL, PRIMARY KEY (a, b))",
            "CREATE UNIQUE INDEX by_key ON shop.halves (b, a)",
            f"ALTER TABLE shop.halves REPLICA IDENTITY {identity}",
            f"CREATE PUBLICATION {publication} FOR ALL TABLES WITH (publish_via_partition_root)",
        )
        text = said(shop.sound(), "replica_identity", "table")
        assert "shop.halves cannot be captured: b of its key is generated and is not published" in text
        assert not shop.table_rows().get("shop.halves")
        if shop.server.version < 18:
            assert "publish_generated_columns" not in text
            return
        shop.sql(f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)")
        report = shop.sound()
        assert [f for f in report.table_errors if f.check == "replica_identity"] == []
        assert shop.table_rows()["shop.halves"].life.is_captured

    @since_18
    def test_a_virtual_generated_column_under_full_identity_is_never_published(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.lines (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL)",
            "ALTER TABLE shop.lines REPLICA IDENTITY FULL",
        )
        report = shop.sound()
        assert "virtual generated column 'twice'" in said(report, "replica_identity", "warning")
        shop.with_tables("shop.lines", "shop.orders")
        assert "virtual generated column 'twice'" in said(shop.sound(), "replica_identity", "table")
        assert shop.published() == {"orders"}

    @pytest.mark.parametrize(("what", "endangers"), [("ALL TABLES", True), ("TABLES IN SCHEMA shop", False)])
    def test_a_publication_under_which_a_detached_partition_ends_the_server_is_warned_of(
        self, shop: Shop, what: str, endangers: bool
    ) -> None:
        publication = shop.config.publication
        shop.sql(f"CREATE PUBLICATION {publication} FOR {what} WITH (publish_via_partition_root)")
        text = said(shop.sound(), "publication", "warning")
        assert ("DETACH PARTITION … CONCURRENTLY" in text) is endangers

    def test_partitions_need_the_identity_of_their_root(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.sales (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
            "CREATE TABLE shop.sales_low PARTITION OF shop.sales FOR VALUES FROM (0) TO (10)",
        )
        report = shop.sound()
        assert shop.published() == {"orders", "sales"}
        assert "TRUNCATE of one partition of shop.sales is not replicated" in said(report, "partitions", "note")
        shop.sql("ALTER TABLE shop.sales REPLICA IDENTITY FULL")
        text = said(shop.sound(), "replica_identity", "table")
        assert "ALTER TABLE shop.sales_low REPLICA IDENTITY FULL" in text
        assert not shop.table_rows()["shop.sales"].life.is_captured
        shop.sql("ALTER TABLE shop.sales_low REPLICA IDENTITY FULL")
        shop.sound()
        assert shop.table_rows()["shop.sales"].backfill_kind == "rejoined"

    def test_what_cannot_be_captured_is_refused_where_it_is_named(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE shop.sales (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE shop.sales_low PARTITION OF shop.sales FOR VALUES FROM (0) TO (10)",
            "CREATE VIEW shop.seen AS SELECT 1 AS one",
            "CREATE UNLOGGED TABLE shop.scratch (id int PRIMARY KEY)",
        )
        shop.sound()
        shop.with_tables("shop.orders", "shop.sales_low", "shop.seen", "shop.scratch", "pg_catalog.pg_class")
        text = said(shop.sound(), "tables", "table")
        for fragment in ("name its root shop.sales", "it is a view", "shop.scratch is unlogged", "PostgreSQL itself"):
            assert fragment in text, text

    @pytest.mark.parametrize("databases", [16], indirect=True)
    def test_an_unlogged_root_is_not_told_what_does_nothing(self, shop: Shop) -> None:
        """Before 18 PostgreSQL accepts UNLOGGED of a root, and SET LOGGED, which leaves it as it is."""
        shop.sql("CREATE UNLOGGED TABLE shop.sales (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        shop.sql("ALTER TABLE shop.sales SET LOGGED")
        text = said(shop.sound(), "tables", "warning")
        assert "shop.sales is unlogged" in text
        assert "SET LOGGED" not in text

    @pytest.mark.parametrize(
        ("options", "severity", "said_of_it"),
        [
            (
                "publish = 'insert, update', publish_via_partition_root = true",
                "error",
                "does not publish delete, truncate",
            ),
            (
                "publish_via_partition_root = false",
                "table",
                "publishes the partitions of shop.sales as tables of their own",
            ),
        ],
    )
    def test_options_of_a_publication_that_lose_changes(
        self, shop: Shop, options: str, severity: str, said_of_it: str
    ) -> None:
        shop.sql("CREATE TABLE shop.sales (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders, shop.sales WITH ({options})")
        report = shop.preflight(says=["adopt_slot"])
        assert bool(report.errors) == (severity == "error")
        assert said_of_it in said(report, "publication", severity)
        statement = said(report, "publication", severity).partition("reads it: ")[2].partition(", and")[0].rstrip(".")
        shop.sql(statement)
        assert said_of_it not in str(shop.sound())
        assert shop.table_rows()["shop.sales"].life.is_captured

    def test_a_column_list_that_lacks_the_key_breaks_the_application(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders (note)")
        shop.sql("INSERT INTO shop.orders VALUES (1)")
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            shop.sql("UPDATE shop.orders SET note = 'x'")
        report = shop.preflight()
        assert "The column list of shop.orders lacks id" in said(report, "publication", "table")
        assert [f.check for f in report.errors] == ["tables"]

    def test_a_slot_older_than_its_publication_is_refused(self, shop: Shop) -> None:
        shop.sound()
        shop.sql(f"DROP PUBLICATION {shop.config.publication}")
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
            a_run(shop.config, source="host=127.0.0.1 port=1 dbname=x", ledger="host=127.0.0.1 port=1 dbname=x")
        )
        assert [f.check for f in report.errors] == ["ledger", "source"]
        with pytest.raises(PreflightWaits):
            report.raise_for_errors()

    def test_row_level_security_is_said(self, shop: Shop) -> None:
        role = f"reader_{shop.config.pipeline}"
        shop.sql(
            login(role, shop.source, "REPLICATION"),
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


def test_a_source_elsewhere_that_nobody_made_sure_of_is_a_warning(shop: Shop) -> None:
    elsewhere = make_conninfo(shop.source, host="db.example.com", hostaddr="127.0.0.1")
    (finding,) = [f for f in shop.preflight(source=elsewhere, act=False).findings if f.check == "tls"]
    assert finding.severity == "warning"
    assert "The source at db.example.com is reached with sslmode=prefer" in finding.message
    assert "connection source" in finding.remedy
