"""Whoever may create a table in a captured schema cannot stop the pipeline: an error of a table stays with it (R6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.capture.preflight.shop import Shop, said, since_18
from tests.support.roles import login
from tests.support.thorough import either
from tidemark.config import TableRule
from tidemark.formats.manifest import BatchManifest
from tidemark.ledger.captured import merge_states, table_errors
from tidemark.ledger.captured.table_errors import TableErrors
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import batches
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.observe.run_verdict import examine
from tidemark.source.catalogue import transaction_visibility
from tidemark.storage.store import Store

FOREIGN = "CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere"
ROOT = "CREATE TABLE shop.bad (id int PRIMARY KEY, n int NOT NULL UNIQUE) PARTITION BY RANGE (id)".replace(
    " UNIQUE", ""
)
LEAF = "CREATE TABLE shop.bad_low PARTITION OF shop.bad FOR VALUES FROM (0) TO (10)"

# What whoever may create a table can do so that it cannot be captured, or not now -> what is said of it.
NEVER_CAPTURED = {
    "column of history": ("CREATE TABLE shop.bad (id int PRIMARY KEY, _op text)", "'_op' of shop.bad"),
    "column of a merge": ("CREATE TABLE shop.bad (id int PRIMARY KEY, __tidemark_row text)", "'__tidemark_row'"),
    "column of a file": ("CREATE TABLE shop.bad (id int PRIMARY KEY, _metadata text)", "'_metadata'"),
    "column of an old row": ('CREATE TABLE shop.bad (id int PRIMARY KEY, "_OLD.x" text)', "'_OLD.x'"),
    "column in Java's case": ('CREATE TABLE shop.bad (id int PRIMARY KEY, "_commit_lſn" text)', "'_commit_lſn'"),
    "columns alike": ('CREATE TABLE shop.bad (id int PRIMARY KEY, c text, "C" text)', "c, C"),
    "columns alike in Java": ('CREATE TABLE shop.bad (id int PRIMARY KEY, s text, "ſ" text)', "s, ſ"),
    "no column": ("CREATE TABLE shop.bad (); ALTER TABLE shop.bad REPLICA IDENTITY FULL", "has no column to capture"),
    "leaf of another identity": (f"{ROOT}; {LEAF}; ALTER TABLE shop.bad_low REPLICA IDENTITY FULL", "shop.bad_low"),
    "foreign leaf": (
        f"{FOREIGN}; CREATE TABLE shop.bad (id int) PARTITION BY RANGE (id);"
        "ALTER TABLE shop.bad REPLICA IDENTITY FULL; CREATE FOREIGN TABLE shop.bad_low PARTITION OF shop.bad "
        "FOR VALUES FROM (0) TO (10) SERVER nowhere",
        "is a foreign table",
    ),
    "unlogged leaf": (f"{ROOT}; {LEAF.replace('CREATE', 'CREATE UNLOGGED')}", "ALTER TABLE shop.bad_low SET LOGGED"),
    "unlogged leaf below": (
        f"{ROOT}; {LEAF} PARTITION BY RANGE (id);"
        "CREATE UNLOGGED TABLE shop.bad_lowest PARTITION OF shop.bad_low FOR VALUES FROM (0) TO (5)",
        "Partition shop.bad_lowest of shop.bad is unlogged",
    ),
}

# What becomes of an exactly named table that was captured.
LOST = {
    "dropped": "DROP TABLE shop.bad",
    "renamed": "ALTER TABLE shop.bad RENAME TO other",
    "a view": "DROP TABLE shop.bad; CREATE VIEW shop.bad AS SELECT 1 AS id",
    "unlogged": "DROP TABLE shop.bad; CREATE UNLOGGED TABLE shop.bad (id int PRIMARY KEY)",
    "a foreign table": f"DROP TABLE shop.bad; {FOREIGN}; CREATE FOREIGN TABLE shop.bad (id int) SERVER nowhere",
    "a partition": "DROP TABLE shop.bad; CREATE TABLE shop.roof (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE shop.bad PARTITION OF shop.roof FOR VALUES FROM (0) TO (10)",
}


def errors(shop: Shop) -> dict[str, TableErrors]:
    with open_ledger(shop.ledger, shop.config.pipeline) as ledger:
        return {error.table: error for error in table_errors.all_of(ledger)}


def staged(shop: Shop, run_id: str) -> dict[str, int]:
    """Drain once; the changes that were staged, by table."""
    drained = shop.drain(run_id)
    assert drained.reached_target
    with open_ledger(shop.ledger, shop.config.pipeline) as ledger:
        staged_batches = [b for b in batches.after(ledger, 1, Lsn(0)) if b.run_id == run_id]
    store = Store(shop.config.lake)
    manifests = [BatchManifest.from_json(store.read(b.manifest).decode()) for b in staged_batches]
    return {table.table: table.rows for manifest in manifests for table in manifest.tables}


@contextmanager
def another_role(shop: Shop, name: str) -> Iterator[str]:
    """A login that may replicate and nothing else; while it is here, the test may let it be the pipeline's."""
    role, as_superuser = f"{name}_{shop.config.pipeline}", shop.source
    shop.sql(login(role, shop.source, "REPLICATION"))
    try:
        yield role
    finally:
        shop.source = as_superuser
        shop.sql(f"REASSIGN OWNED BY {role} TO postgres", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def captures_orders(shop: Shop, number: int) -> dict[str, int]:
    """A whole run as far as staging, with a change of the table that nobody harmed."""
    shop.sound()
    assert "shop.orders" in shop.table_rows()
    shop.sql(f"INSERT INTO shop.orders VALUES ({number})")
    moved = staged(shop, f"run-{number}")
    assert moved.get("shop.orders") == 1
    return moved


@pytest.fixture(autouse=True)
def no_wrapper_stays(shop: Shop) -> Iterator[None]:
    yield
    shop.sql("DROP FOREIGN DATA WRAPPER IF EXISTS nowhere CASCADE")


@pytest.mark.parametrize("name", NEVER_CAPTURED)
class TestATableThatCannotBeCaptured:
    @pytest.mark.some(4)
    def test_is_left_out_and_said_once(self, shop: Shop, name: str) -> None:
        captures_orders(shop, 1)
        statements, said_of_it = NEVER_CAPTURED[name]
        shop.sql(statements)
        assert "shop.bad" not in captures_orders(shop, 2)
        report = shop.sound()
        assert said_of_it in "\n".join(str(f) for f in report.table_errors)
        assert shop.published() == {"orders"}
        assert errors(shop)["shop.bad"].barred
        messages: list[str] = []
        for _ in range(2):
            examine(shop.task(), tell=messages.append)
        assert len(messages) == 1
        assert said_of_it in messages[0]

    @pytest.mark.some(4)
    def test_is_passed_over_in_the_stream_of_a_publication_for_all_tables(self, shop: Shop, name: str) -> None:
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR ALL TABLES WITH (publish_via_partition_root)")
        captures_orders(shop, 1)
        statements, _ = NEVER_CAPTURED[name]
        shop.sql(statements)
        shop.sound()
        if "foreign" not in name:
            shop.sql("INSERT INTO shop.bad DEFAULT VALUES" if name == "no column" else _some_row(shop))
        assert "shop.bad" not in captures_orders(shop, 2)
        assert "shop.bad" not in shop.table_rows()


def _some_row(shop: Shop) -> str:
    (columns,) = shop.sql("SELECT count(*) FROM pg_attribute WHERE attrelid = 'shop.bad'::regclass AND attnum > 0")[0]
    return f"INSERT INTO shop.bad VALUES ({', '.join(['1'] * columns)})"


@pytest.mark.some(2)
@pytest.mark.parametrize("name", LOST)
def test_a_named_table_that_is_no_table_any_more_leaves_and_another_one_of_its_name_joins(
    shop: Shop, name: str
) -> None:
    shop.sql("CREATE TABLE shop.bad (id int PRIMARY KEY)")
    shop.with_tables("shop.orders", "shop.bad")
    captures_orders(shop, 1)
    shop.sql(LOST[name])
    assert "shop.bad" not in captures_orders(shop, 2)
    assert not shop.table_rows()["shop.bad"].life.is_captured
    assert errors(shop)["shop.bad"].barred
    shop.sql(
        "DO $$ BEGIN EXECUTE (SELECT format('DROP %s shop.bad', CASE relkind WHEN 'v' THEN 'VIEW' "
        "WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END) FROM pg_class WHERE oid = to_regclass('shop.bad')); "
        "EXCEPTION WHEN null_value_not_allowed THEN NULL; END $$",
        "CREATE TABLE shop.bad (id int PRIMARY KEY)",
    )
    captures_orders(shop, 3)
    assert errors(shop) == {}
    row = shop.table_rows()["shop.bad~2"]
    assert (row.life.is_captured, row.life.needs_backfill) == (True, False)  # it was seen empty


class TestACapturedTable:
    def test_whose_definition_turns_bad_is_parked_with_its_changes_staged(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.bad (id int PRIMARY KEY)")
        captures_orders(shop, 1)
        shop.sql('ALTER TABLE shop.bad ADD COLUMN "_op" text', "INSERT INTO shop.bad VALUES (1, 'x')")
        assert captures_orders(shop, 2)["shop.bad"] == 1
        row = shop.table_rows()["shop.bad"]
        assert (row.life.is_captured, row.life.merge) == (True, "parked")
        error = errors(shop)["shop.bad"]
        assert not error.barred
        assert "'_op' of shop.bad" in error.message
        shop.sql('ALTER TABLE shop.bad DROP COLUMN "_op"')
        captures_orders(shop, 3)
        assert errors(shop) == {}

    def test_that_the_role_may_read_no_more_is_captured_on(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.bad (id int PRIMARY KEY)")
        with another_role(shop, "reader") as role:
            shop.sql(f"GRANT CREATE ON DATABASE {shop.sql('SELECT current_database()')[0][0]} TO {role}")
            shop.sql(f"ALTER SCHEMA shop OWNER TO {role}", f"ALTER TABLE shop.orders OWNER TO {role}")
            shop.sql(f"ALTER TABLE shop.bad OWNER TO {role}")
            shop.source = make_conninfo(shop.source, user=role)
            captures_orders(shop, 1)
            shop.sql(f"REVOKE SELECT ON shop.bad FROM {role}", "INSERT INTO shop.bad VALUES (1)")
            assert captures_orders(shop, 2)["shop.bad"] == 1
            assert "may not read shop.bad" in said(shop.sound(), "rights", "table")
            assert shop.table_rows()["shop.bad"].life.is_captured

    def test_whose_leaf_gets_another_identity_leaves_and_comes_back_for_a_backfill(self, shop: Shop) -> None:
        shop.sql(ROOT, LEAF)
        captures_orders(shop, 1)
        shop.sql(
            "CREATE UNIQUE INDEX by_n ON shop.bad_low (n)",
            "ALTER TABLE shop.bad_low REPLICA IDENTITY USING INDEX by_n",
            "INSERT INTO shop.bad VALUES (1, 1)",
        )
        assert "shop.bad" not in captures_orders(shop, 2)
        row = shop.table_rows()["shop.bad"]
        assert (row.life.is_captured, row.life.needs_backfill) == (False, True)
        shop.sql("ALTER TABLE shop.bad_low REPLICA IDENTITY DEFAULT")
        captures_orders(shop, 3)
        row = shop.table_rows()["shop.bad"]
        assert (row.life.is_captured, row.life.needs_backfill, row.backfill_kind) == (True, True, "passed_over")

    @pytest.mark.parametrize(
        "published",
        either(by_name="TABLE shop.bad, shop.orders", all_tables="ALL TABLES", by_schema="TABLES IN SCHEMA shop"),
    )
    @pytest.mark.parametrize(
        "end",
        [
            "ALTER TABLE shop.bad_low SET LOGGED",
            "ALTER TABLE shop.bad DETACH PARTITION shop.bad_low",
            "DROP TABLE shop.bad_low",
        ],
    )
    def test_of_which_a_leaf_is_made_unlogged_leaves_and_comes_back_for_a_backfill(
        self, shop: Shop, published: str, end: str
    ) -> None:
        """PostgreSQL accepts it, whatever the publication is for."""
        shop.sql(ROOT, LEAF)
        shop.sql(
            f"CREATE PUBLICATION {shop.config.publication} FOR {published} WITH (publish_via_partition_root = true)"
        )
        shop.with_tables("shop.orders", "shop.bad")
        captures_orders(shop, 1)
        shop.sql("ALTER TABLE shop.bad_low SET UNLOGGED", "INSERT INTO shop.bad VALUES (1, 1)")
        assert "shop.bad" not in captures_orders(shop, 2)
        assert "ALTER TABLE shop.bad_low SET LOGGED" in errors(shop)["shop.bad"].message
        row = shop.table_rows()["shop.bad"]
        assert (row.life.is_captured, row.life.needs_backfill) == (False, True)
        shop.sql(end)
        captures_orders(shop, 3)
        assert errors(shop) == {}
        row = shop.table_rows()["shop.bad"]
        assert (row.life.is_captured, row.life.needs_backfill) == (True, True)

    def test_what_is_staged_of_a_table_that_left_is_merged_all_the_same(self, shop: Shop) -> None:
        shop.sql(ROOT, LEAF)
        captures_orders(shop, 1)
        shop.sql("INSERT INTO shop.bad VALUES (1, 1)")
        captures_orders(shop, 2)
        shop.sql("ALTER TABLE shop.bad_low REPLICA IDENTITY FULL")
        captures_orders(shop, 3)
        with open_ledger(shop.ledger, shop.config.pipeline) as ledger:
            assert "shop.bad" in merge_states.due(ledger, 3600)
            assert [b.table for b in batches.unapplied(ledger) if b.table == "shop.bad"]


class TestRights:
    def test_a_table_of_somebody_else_does_not_keep_the_others_out_of_the_publication(self, shop: Shop) -> None:
        with another_role(shop, "owner") as role:
            (database,) = shop.sql("SELECT current_database()")[0]
            shop.sql(
                f"GRANT CREATE ON DATABASE {database} TO {role}",
                f"GRANT ALL ON SCHEMA shop TO {role}",
                f"ALTER TABLE shop.orders OWNER TO {role}",
                f"CREATE TABLE shop.lines (id int PRIMARY KEY); ALTER TABLE shop.lines OWNER TO {role}",
                "CREATE TABLE shop.foreign_owned (id int PRIMARY KEY)",
                f"GRANT SELECT ON ALL TABLES IN SCHEMA shop TO {role}",
                "CREATE TABLE shop.unreadable (id int PRIMARY KEY)",
            )
            shop.source = make_conninfo(shop.source, user=role)
            captures_orders(shop, 1)
            assert shop.published() == {"orders", "lines"}
            assert set(errors(shop)) == {"shop.foreign_owned", "shop.unreadable"}
            report = shop.sound()
            assert f"GRANT postgres TO {role}" in said(report, "rights", "table")
            assert "may not read shop.unreadable" in said(report, "rights", "table")
            with psycopg.connect(shop.source, user="postgres", autocommit=True) as admin:
                admin.execute(f"GRANT SELECT ON shop.unreadable TO {role}".encode())
                for table in ("unreadable", "foreign_owned"):
                    admin.execute(f"ALTER TABLE shop.{table} OWNER TO {role}".encode())
            captures_orders(shop, 2)
            assert errors(shop) == {}
            assert shop.published() == {"orders", "lines", "foreign_owned", "unreadable"}

    def test_a_publication_of_somebody_else_is_read_as_it_is(self, shop: Shop) -> None:
        shop.sql(
            f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders WITH (publish_via_partition_root)"
        )
        with another_role(shop, "reader") as role:
            shop.sql(
                f"GRANT USAGE ON SCHEMA shop TO {role}",
                "CREATE TABLE shop.lines (id int PRIMARY KEY)",
                f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA shop TO {role}",
            )
            shop.source = make_conninfo(shop.source, user=role)
            captures_orders(shop, 1)
            assert "does not own publication" in said(shop.sound(), "rights", "table")
            assert set(errors(shop)) == {"shop.lines"}

    def test_of_a_leaf_no_rights_are_asked_and_no_policy_holds_where_its_root_is_read(self, shop: Shop) -> None:
        shop.sql(ROOT, LEAF, "INSERT INTO shop.bad VALUES (1, 1)")
        with another_role(shop, "owner") as role:
            (database,) = shop.sql("SELECT current_database()")[0]
            shop.sql(
                f"GRANT CREATE ON DATABASE {database} TO {role}",
                f"GRANT USAGE ON SCHEMA shop TO {role}",
                f"ALTER TABLE shop.orders OWNER TO {role}",
                f"GRANT INSERT ON shop.orders TO {role}",
                f"ALTER TABLE shop.bad OWNER TO {role}",
                f"REVOKE ALL ON shop.bad_low FROM {role}",
                "ALTER TABLE shop.bad_low OWNER TO postgres",
                "ALTER TABLE shop.bad_low ENABLE ROW LEVEL SECURITY",
                "ALTER TABLE shop.bad_low FORCE ROW LEVEL SECURITY",
            )
            shop.source = make_conninfo(shop.source, user=role)
            captures_orders(shop, 1)
            assert errors(shop) == {}
            assert shop.table_rows()["shop.bad"].life.is_captured
            assert shop.sql("SELECT id, n FROM shop.bad") == [(1, 1)]


class TestLocks:
    def test_tables_that_somebody_holds_cost_the_others_no_more_than_two_waits(self, shop: Shop) -> None:
        captures_orders(shop, 1)
        shop.sql(*(f"CREATE TABLE shop.held_{n} (id int PRIMARY KEY)" for n in range(8)))
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        holder = shop.open()
        for n in range(8):
            holder.execute(f"LOCK TABLE shop.held_{n} IN ACCESS EXCLUSIVE MODE".encode())
        report = shop.sound()
        assert report.seconds < 6  # of 8, were each waited for
        assert shop.published() == {"orders", "lines"}
        assert len(errors(shop)) == 8
        assert captures_orders(shop, 2)
        holder.rollback()
        captures_orders(shop, 3)
        assert errors(shop) == {}

    def test_a_captured_table_that_somebody_holds_holds_up_nobody(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.held (id int PRIMARY KEY)", "INSERT INTO shop.held VALUES (1)")
        shop.sql(ROOT.replace("bad", "split"), LEAF.replace("bad", "split"))
        captures_orders(shop, 1)
        holder = shop.open()
        holder.execute("LOCK TABLE shop.held, shop.split IN ACCESS EXCLUSIVE MODE")
        captures_orders(shop, 2)
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        captures_orders(shop, 3)
        assert shop.table_rows()["shop.lines"].life.is_captured
        assert shop.table_rows()["shop.held"].life.is_captured
        holder.rollback()


def test_a_partitioned_table_without_a_leaf_is_not_published_where_its_leaves_could_not_be_updated(shop: Shop) -> None:
    shop.sql("CREATE TABLE shop.split (id int, n int) PARTITION BY RANGE (id)")
    assert "shop.split fits a pattern but is not captured" in said(shop.sound(), "replica_identity", "warning")
    shop.sql(
        "CREATE TABLE shop.split_low PARTITION OF shop.split FOR VALUES FROM (0) TO (10)",
        "INSERT INTO shop.split VALUES (1, 1)",
        "UPDATE shop.split SET n = 2",
    )
    shop.sound()
    assert shop.published() == {"orders"}


def test_a_view_in_the_place_of_a_table_that_joins_is_not_read(shop: Shop) -> None:
    """Its functions would run with the rights of the capture."""
    shop.sql(
        "CREATE SEQUENCE shop.called",
        "CREATE FUNCTION shop.call() RETURNS int LANGUAGE sql AS $$ SELECT nextval('shop.called')::int $$",
        "CREATE VIEW shop.seen AS SELECT shop.call() AS id",
    )
    with psycopg.connect(shop.source, autocommit=True) as connection:
        looked = transaction_visibility.is_empty_after_horizon(
            connection, TableName("shop", "seen"), 0, partitioned=False, lock_timeout_s=1, statement_timeout_s=10
        )
    assert looked is None
    assert shop.sql("SELECT is_called FROM shop.called") == [(False,)]


def test_a_default_as_long_as_any_value_is_no_burden_to_ledger_and_manifest(shop: Shop) -> None:
    shop.sql("CREATE TABLE shop.bad (id int PRIMARY KEY)")
    captures_orders(shop, 1)
    shop.sql("ALTER TABLE shop.bad ADD COLUMN long text DEFAULT repeat('x', 100000)", "INSERT INTO shop.bad VALUES (1)")
    captures_orders(shop, 2)
    row = shop.table_rows()["shop.bad"]
    assert "was added with a default" in str(row.backfill_reason)
    assert len(str(row.fingerprint)) < 5000
    shop.sql("CREATE TABLE shop.split (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    shop.sql("CREATE TABLE shop.split_low PARTITION OF shop.split FOR VALUES FROM (0) TO (10)")
    captures_orders(shop, 3)
    shop.sql(
        "ALTER TABLE shop.split ADD COLUMN long text DEFAULT repeat('x', 100000)", "INSERT INTO shop.split VALUES (1)"
    )
    captures_orders(shop, 4)
    assert "was added with a default" in str(shop.table_rows()["shop.split"].backfill_reason)
    assert len(str(shop.table_rows()["shop.split"].fingerprint)) < 5000


@since_18
def test_types_nested_however_deep_are_read(shop: Shop) -> None:
    shop.sql("CREATE DOMAIN shop.d0 AS int")
    for n in range(1, 300):
        shop.sql(
            f"CREATE DOMAIN shop.d{n} AS shop.d{n - 1}[]" if n % 2 else f"CREATE DOMAIN shop.d{n} AS shop.d{n - 1}"
        )
    shop.sql("CREATE TABLE shop.deep (id int PRIMARY KEY, d shop.d299[])", "INSERT INTO shop.deep VALUES (1, NULL)")
    captures_orders(shop, 1)
    shop.sql("INSERT INTO shop.deep VALUES (2, '{}')")
    assert captures_orders(shop, 2)["shop.deep"] == 1


def test_all_tables_gone_leave_a_slot_that_moves_on(shop: Shop) -> None:
    captures_orders(shop, 1)
    shop.sql("DROP TABLE shop.orders", "CREATE TABLE public.other (id int)", "INSERT INTO public.other VALUES (1)")
    report = shop.sound()
    assert "None of the tables" in said(report, "tables", "warning")
    before = shop.generation()
    staged(shop, "run-2")
    after = shop.generation()
    assert before is not None
    assert after is not None
    assert after.staged_lsn > before.staged_lsn


def test_a_named_table_whose_column_is_gone_from_leave_out_is_its_own_trouble(shop: Shop) -> None:
    shop.sql("CREATE TABLE shop.bad (id int PRIMARY KEY, secret text)")
    shop.with_tables("shop.*", TableRule("shop.bad", leave_out=("secret",), line=4))
    captures_orders(shop, 1)
    shop.sql("ALTER TABLE shop.bad DROP secret", "INSERT INTO shop.bad VALUES (1)")
    captures_orders(shop, 2)
    assert "shop.bad has no column 'secret'" in said(shop.sound(), "columns", "table")


def test_a_masked_column_that_is_renamed_is_followed_and_said_until_the_file_names_it(shop: Shop) -> None:
    shop.sql("CREATE TABLE shop.people (id int PRIMARY KEY, email text)")
    shop.with_tables("shop.*", TableRule("shop.people", mask={"email": "null"}, line=4))
    captures_orders(shop, 1)
    shop.sql("ALTER TABLE shop.people RENAME email TO mail", "INSERT INTO shop.people VALUES (1, 'x')")
    assert captures_orders(shop, 2)["shop.people"] == 1
    assert "mail (was email of shop.people)" in said(shop.sound(), "columns", "table")
    shop.sql("ALTER TABLE shop.people RENAME TO persons", "INSERT INTO shop.persons VALUES (2, 'x')")
    assert captures_orders(shop, 3)["shop.people"] == 1
    assert "mail (was email of shop.people)" in said(shop.sound(), "columns", "table")
    shop.with_tables("shop.*", TableRule("shop.persons", mask={"mail": "sha256"}, line=4))
    assert not [f for f in shop.sound().table_errors if f.check == "columns"]


def test_a_patterns_mask_that_fits_no_table_lets_no_table_of_it_join(shop: Shop) -> None:
    shop.sql("CREATE TABLE shop.people (id int PRIMARY KEY, email text)")
    shop.with_tables(TableRule("shop.*", mask={"emial": "null"}, line=3), "shop.orders")
    report = shop.preflight()
    assert "No table of shop.* has a column 'emial'" in said(report, "columns", "table")
    assert "Did you mean 'email'?" in str(report)
    assert shop.table_rows() == {}
    shop.with_tables(TableRule("shop.*", mask={"email": "null"}, line=3))
    assert not shop.sound().table_errors
    assert set(shop.table_rows()) == {"shop.orders", "shop.people"}
    shop.sql("ALTER TABLE shop.people DROP email", "CREATE TABLE shop.later (id int PRIMARY KEY)")
    shop.preflight()
    assert {table for table, row in shop.table_rows().items() if row.life.is_captured} == {"shop.orders", "shop.people"}
