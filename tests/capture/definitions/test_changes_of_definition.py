"""What the drain does when a table's columns change at the source: new versions, marks, parks (R6, R8, R11)."""

from __future__ import annotations

import pytest

from tests.support.definitions import missing, numbers, state, versions
from tests.support.pipeline import Pipeline
from tidemark.capture.merge_planning import leased_plan
from tidemark.config import TableRule
from tidemark.observe import generated_columns
from tidemark.schema.fingerprint import Fingerprint


def test_a_nullable_column_is_followed_by_a_new_version(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (2, 2, 'two', 22)")
    orders.drain()
    assert versions(orders) == [("id", "amount", "note"), ("id", "amount", "note", "more")]
    assert state(orders) == ("merging", None)
    assert [r.get("more") for r in orders.staged("public.orders")] == [None, 22]


def test_a_change_of_definition_inside_a_batch_gives_files_of_both_versions(orders: Pipeline) -> None:
    orders.execute("INSERT INTO orders VALUES (2)", "ALTER TABLE orders ADD COLUMN more int")
    orders.execute("INSERT INTO orders VALUES (3, NULL, NULL, 33)")
    orders.drain()
    changes = orders.manifests()[-1].tables[0]
    assert [(f.schema_version, f.rows) for f in changes.files] == [(1, 1), (2, 1)]
    assert len(orders.manifests()[-1].schemas) == 2


DEFAULT = 'column "more" was added with a default, which older rows have too'


def test_the_default_of_an_added_column_is_that_of_its_addition(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7", "ALTER TABLE orders ALTER more SET DEFAULT 8")
    orders.drain()
    assert versions(orders) == [("id", "amount", "note"), ("id", "amount", "note", "more")]
    orders.execute("ALTER TABLE orders ALTER more DROP DEFAULT", "ALTER TABLE orders ADD COLUMN last text DEFAULT 'x'")
    orders.execute("INSERT INTO orders VALUES (2)")
    orders.drain()
    assert state(orders) == ("merging", None)
    assert missing(orders) == {"id": None, "amount": None, "note": None, "more": "7", "last": "x"}


@pytest.mark.parametrize(
    "statement",
    [
        f"ALTER TABLE orders ADD COLUMN long text DEFAULT '{'x' * 1001}'",
        "ALTER TABLE orders ADD COLUMN much numeric(5,1) DEFAULT 'NaN'",
    ],
)
def test_a_default_that_is_not_certain_or_does_not_fit_needs_a_backfill(orders: Pipeline, statement: str) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7", statement, "INSERT INTO orders VALUES (2)")
    orders.drain()
    merge, reason = state(orders)
    assert (merge, "was added with a default, which older rows have too" in (reason or "")) == ("merging", True)


def test_a_default_whose_table_was_rewritten_since_needs_a_backfill(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
    orders.drain()
    orders.execute("VACUUM FULL orders", "INSERT INTO orders VALUES (2)")
    orders.drain()
    assert state(orders) == ("merging", 'the table was rewritten and "more" altered')


def test_a_masked_columns_default_is_nowhere_in_the_ledger(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.with_tables(TableRule("public.*", mask={"secret": "null", "hashed": "sha256"}))
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    pipeline.drain()
    pipeline.execute("ALTER TABLE orders ADD COLUMN secret text DEFAULT 'needle', ADD COLUMN hashed int DEFAULT 4711")
    pipeline.execute("INSERT INTO orders VALUES (2)")
    pipeline.drain()
    texts = pipeline.ledger_query("SELECT definition::text FROM tidemark.schema_versions")
    texts += pipeline.ledger_query("SELECT fingerprint::text FROM tidemark.tables")
    assert not any("needle" in text or "4711" in text for (text,) in texts)
    assert DEFAULT.replace("more", "hashed") in (state(pipeline)[1] or "")


def parked_for(pipeline: Pipeline, reason: str) -> bool:
    row = pipeline.table_row("public.orders")
    assert row.error is not None
    return row.life.merge == "parked" and reason in row.error.message


@pytest.mark.parametrize("between", ["nothing", "a drain", "a change under both names"])
def test_a_renamed_column_is_followed_by_its_number(orders: Pipeline, between: str) -> None:
    orders.execute("INSERT INTO orders VALUES (5, 5, 'five')" if "both" in between else "SELECT 1")
    orders.execute("ALTER TABLE orders RENAME COLUMN note TO remark")
    if between == "a drain":
        orders.drain()
        assert state(orders) == ("merging", None)
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "amount": 2, "remark": 3})


def test_names_that_swap_and_an_old_name_that_comes_back_are_told_apart(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more varchar(10)", "INSERT INTO orders VALUES (2, 2, '2', '2')")
    orders.drain()
    orders.execute(
        "DO $$BEGIN ALTER TABLE orders RENAME note TO x; ALTER TABLE orders RENAME more TO note; "
        "ALTER TABLE orders RENAME x TO more; END$$"
    )
    orders.execute("INSERT INTO orders VALUES (3)")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "amount": 2, "more": 3, "note": 4})
    orders.execute("ALTER TABLE orders RENAME note TO remark", "ALTER TABLE orders ADD COLUMN note int DEFAULT 5")
    orders.execute("ALTER TABLE orders RENAME id TO number", "INSERT INTO orders VALUES (4)")
    orders.drain()
    assert state(orders) == ("merging", None)
    assert numbers(orders) == {"number": 1, "amount": 2, "more": 3, "remark": 4, "note": 5}
    assert missing(orders)["note"] == "5"


def test_names_that_swapped_while_a_column_was_dropped_are_told_apart(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more varchar(10)", "INSERT INTO orders VALUES (2, 2, '2', '2')")
    orders.drain()
    orders.execute("ALTER TABLE orders RENAME note TO x", "ALTER TABLE orders RENAME more TO note")
    orders.execute("ALTER TABLE orders RENAME x TO more", "ALTER TABLE orders DROP amount")
    orders.execute("INSERT INTO orders VALUES (3)")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "more": 3, "note": 4})


def test_an_old_name_that_came_back_is_followed_where_a_run_saw_it_before_a_column_was_dropped(
    orders: Pipeline,
) -> None:
    orders.execute("ALTER TABLE orders RENAME note TO remark", "ALTER TABLE orders ADD COLUMN note varchar(10)")
    orders.drain()
    assert state(orders) == ("merging", None)
    orders.execute("ALTER TABLE orders DROP amount", "INSERT INTO orders VALUES (3)")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "remark": 3, "note": 4})


@pytest.mark.parametrize("type_", ["varchar(10)", "int"])
def test_what_may_be_either_column_is_built_anew_and_no_table_has_names_beside_numbers(
    orders: Pipeline, type_: str
) -> None:
    """Neither a change without the column nor a drain between the two: names alone could be either's."""
    orders.execute("INSERT INTO orders VALUES (2, 2, '2')", "ALTER TABLE orders DROP COLUMN note")
    orders.execute(f"ALTER TABLE orders ADD COLUMN note {type_}", "INSERT INTO orders VALUES (3, 3, '3')")
    orders.drain()
    rows = orders.table_rows()
    assert not any(row.life.is_parked for row in rows.values())
    assert rows["public.orders~2"].life.needs_backfill
    definitions = orders.ledger_query("SELECT \"table\", definition -> 'published' FROM tidemark.schema_versions")
    placed = [{bool(numbers) for table, numbers in definitions if table == one} for one in rows]
    assert all(len(kinds) <= 1 for kinds in placed)


def test_a_column_that_takes_the_name_of_a_dropped_one_is_followed(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders DROP COLUMN amount", "INSERT INTO orders VALUES (2)")
    orders.drain()
    orders.execute("INSERT INTO orders VALUES (3)")
    orders.drain()
    orders.execute("ALTER TABLE orders RENAME note TO amount", "INSERT INTO orders VALUES (4)")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "amount": 3})


def test_a_key_of_a_dropped_columns_name_needs_another_shape(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders DROP COLUMN amount", "ALTER TABLE orders RENAME COLUMN id TO amount")
    orders.execute("INSERT INTO orders VALUES (2)")
    orders.drain()
    reason = orders.table_row("public.orders~2").backfill_reason
    assert reason is not None
    assert 'column "amount" of the key has a name by now that the target has for a dropped one' in reason


def test_another_key_of_the_old_ones_name_needs_another_shape(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders DROP COLUMN id", "INSERT INTO orders VALUES (5, 'five')")
    orders.execute("ALTER TABLE orders ADD COLUMN id serial PRIMARY KEY", "INSERT INTO orders VALUES (2, 'two')")
    orders.drain()
    reason = orders.table_row("public.orders~3").backfill_reason
    assert reason is not None
    assert "the key changed from none" in reason


@pytest.mark.parametrize("between", ["nothing", "a drain", "a change under both shapes"])
def test_a_dropped_column_is_followed_whenever_the_catalogue_was_looked_at(orders: Pipeline, between: str) -> None:
    orders.execute("INSERT INTO orders VALUES (5, 5, 'five')" if "both" in between else "SELECT 1")
    orders.execute("ALTER TABLE orders DROP COLUMN note")
    if between == "a drain":
        orders.drain()
    orders.execute("INSERT INTO orders VALUES (2, 2)")
    orders.drain()
    assert state(orders) == ("merging", None)


def test_a_column_renamed_while_another_one_was_dropped_is_none_that_was_dropped(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more varchar(10)", "INSERT INTO orders VALUES (2, 2, '2', '2')")
    orders.drain()
    orders.execute("ALTER TABLE orders DROP COLUMN note", "ALTER TABLE orders RENAME COLUMN more TO note")
    orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "amount": 2, "note": 4})


@pytest.mark.parametrize("type_", ["varchar(10)", "int"])
@pytest.mark.parametrize("between", ["a drain", "both"])
def test_a_column_of_a_dropped_ones_name_is_another_one(orders: Pipeline, between: str, type_: str) -> None:
    orders.execute("INSERT INTO orders VALUES (5, 5, 'five')", "ALTER TABLE orders DROP COLUMN note")
    if between != "a drain":
        orders.execute("INSERT INTO orders VALUES (2, 2)")
    if between != "a change":
        orders.drain()
    orders.execute(f"ALTER TABLE orders ADD COLUMN note {type_} DEFAULT '7'", "INSERT INTO orders VALUES (3, 3, '3')")
    orders.drain()
    assert (state(orders), numbers(orders)) == (("merging", None), {"id": 1, "amount": 2, "note": 4})
    assert missing(orders)["note"] == "7"
    changes = [table for manifest in orders.manifests() for table in manifest.tables]
    assert len({file.schema_version for table in changes for file in table.files}) == 2 + (between != "a drain")


def test_a_type_that_needs_another_target_needs_another_shape(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ALTER amount TYPE numeric(10,4)", "INSERT INTO orders VALUES (2, 2)")
    orders.drain()
    assert state(orders)[0] == "merging"
    assert orders.table_row("public.orders~2").life.needs_backfill


@pytest.mark.parametrize(("wider", "reason"), [("numeric(12,2)", None), ("numeric(12,4)", "rewritten")])
def test_a_wider_type_is_followed_and_needs_a_backfill_if_the_table_was_rewritten(
    orders: Pipeline, wider: str, reason: str | None
) -> None:
    orders.execute(f"ALTER TABLE orders ALTER amount TYPE {wider}", "INSERT INTO orders VALUES (2, 2)")
    orders.drain()
    merge, marked = state(orders)
    assert (merge, marked is None) == ("merging", reason is None)
    assert (reason or "") in (marked or "")


def test_a_wider_varchar_is_followed(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ALTER note TYPE varchar(20)", "INSERT INTO orders VALUES (2, 2, 'two')")
    orders.drain()
    assert state(orders) == ("merging", None)


def test_a_rewriting_alter_of_the_same_type_needs_a_backfill(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ALTER amount TYPE numeric(10,2) USING amount * 2")
    orders.drain()
    assert state(orders) == ("merging", 'the table was rewritten and "amount" altered')


def test_a_mark_is_made_once_and_not_again_after_it_was_cleared(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
    orders.drain()
    orders.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_reason = NULL, backfill_kind = NULL RETURNING 1"
    )
    orders.execute("INSERT INTO orders VALUES (2)")
    orders.drain()
    assert state(orders) == ("merging", None)


def test_a_key_value_that_does_not_fit_parks_its_table_and_no_other(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (at timestamptz PRIMARY KEY)", "CREATE TABLE lines (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES ('2024-01-01'), ('infinity')", "INSERT INTO lines VALUES (1)")
    pipeline.drain()
    row = pipeline.table_row("public.orders")
    assert row.life.merge == "parked"
    assert row.error is not None
    assert row.error.kind == "KeyValueUnfit"
    assert "infinity" not in row.error.message
    assert state(pipeline, "public.lines") == ("merging", None)
    assert len(pipeline.staged("public.orders")) == 2


def test_values_that_do_not_fit_are_counted_and_kept_as_text(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2))")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 'NaN'), (2, 2)")
    pipeline.drain()
    assert pipeline.manifests()[0].tables[0].converted == {"amount": 1}
    assert [r["_text"] for r in pipeline.staged("public.orders")] == [[("amount", "NaN")], None]


def test_a_column_whose_name_the_target_uses_parks_the_table_when_it_appears(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN _op text", "INSERT INTO orders VALUES (2)")
    orders.drain()
    row = orders.table_row("public.orders")
    assert row.life.merge == "parked"
    assert row.error is not None
    assert 'column "_op" has a name that the target already uses' in row.error.message
    assert len(orders.staged("public.orders")) == 2


def test_a_target_type_that_the_column_does_not_allow_any_more_parks_the_table(pipeline: Pipeline) -> None:
    pipeline.with_tables(TableRule("public.orders", target={"amount": "decimal(20,4)"}))
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric)")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 1)")
    pipeline.drain()
    assert state(pipeline) == ("merging", None)
    pipeline.execute("ALTER TABLE orders ALTER amount TYPE text", "INSERT INTO orders VALUES (2, 'two')")
    pipeline.drain()
    assert state(pipeline)[0] == "parked"


def test_the_key_has_the_order_of_its_index(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (a int, b int, c int, PRIMARY KEY (c, a))")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 2, 3)")
    pipeline.drain()
    assert pipeline.manifests()[0].schemas[0].key == ("c", "a")


@pytest.mark.parametrize(
    ("before", "after", "marked"),
    [("cidr", "inet", True), ("varchar(20)", "text", False), ("varchar(20)", "varchar(30)", False)],
)
def test_a_type_that_reads_otherwise_without_a_rewrite_needs_a_backfill(
    pipeline: Pipeline, before: str, after: str, marked: bool
) -> None:
    pipeline.execute(f"CREATE TABLE nets (id int PRIMARY KEY, net {before})")
    pipeline.begin()
    pipeline.execute("INSERT INTO nets VALUES (1, '10.1.2.3/32')")
    pipeline.drain()
    pipeline.execute(f"ALTER TABLE nets ALTER net TYPE {after}")
    pipeline.drain()
    reason = 'the type of column "net" was altered, and older rows read as something else'
    assert state(pipeline, "public.nets") == ("merging", reason if marked else None)


@pytest.mark.parametrize(
    ("alteration", "marked"),
    [
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", True),
        ("ALTER TYPE size ADD ATTRIBUTE depth int", True),
        ("ALTER TYPE mood ADD VALUE 'glad'", False),
    ],
)
def test_a_type_that_spells_older_rows_otherwise_needs_a_backfill(
    pipeline: Pipeline, alteration: str, marked: bool
) -> None:
    pipeline.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TYPE size AS (width int)")
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, moods mood[], size size)")
    pipeline.begin()
    pipeline.drain()
    pipeline.execute(alteration)
    pipeline.drain()
    assert ("older rows read as something else" in (state(pipeline)[1] or "")) is marked


@pytest.mark.parametrize(
    ("statements", "marked"),
    [
        (("ALTER TABLE orders ADD mood mood", "RENAME", "ALTER TABLE orders ALTER mood SET STATISTICS 7"), True),
        (("ALTER TABLE orders ADD mood mood", "RENAME", "ALTER TABLE orders ALTER mood SET DEFAULT 'ok'"), True),
        (("BEGIN", "ALTER TABLE orders ADD mood mood DEFAULT 'ok'", "RENAME", "COMMIT"), True),
        (("BEGIN", "RENAME", "ALTER TABLE orders ADD mood mood", "COMMIT"), False),
        (("RENAME", "ALTER TABLE orders ADD mood mood[]", "ALTER TABLE orders ALTER mood SET STATISTICS 7"), False),
    ],
)
def test_what_became_of_a_type_is_told_from_when_a_column_got_it(
    orders: Pipeline, statements: tuple[str, ...], marked: bool
) -> None:
    """Not from when the column's own row was written last, which any other ALTER does too."""
    orders.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    for statement in statements:
        orders.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'" if statement == "RENAME" else statement)
        if "ADD" in statement:
            orders.execute(
                "INSERT INTO orders (id, mood) VALUES (2, '{}')"
                if "[]" in statement
                else "INSERT INTO orders VALUES (2, 2, '2', 'ok')"
            )
    orders.drain()
    assert ("altered since it was added" in (state(orders)[1] or "")) is marked


def test_columns_that_alone_may_differ_are_marked_by_their_numbers_until_more_does(pipeline: Pipeline) -> None:
    orders = pipeline
    orders.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note varchar(10))",
        # One that lists the table: PostgreSQL then refuses to make it UNLOGGED.
        f"CREATE PUBLICATION {orders.config.publication} FOR TABLE orders WITH (publish_via_partition_root)",
    )
    orders.create_slot()
    orders.drain()
    orders.execute("ALTER TABLE orders ADD COLUMN seen timestamptz DEFAULT clock_timestamp()")
    orders.drain()
    assert orders.table_row("public.orders").columns_in_doubt == [4]
    orders.execute(
        "ALTER TABLE orders ADD COLUMN half int GENERATED ALWAYS AS (id / 2) STORED, ADD COLUMN number serial"
    )
    orders.drain()
    assert orders.table_row("public.orders").columns_in_doubt == [4, 6]  # a generated column is not published
    orders.execute("ALTER TABLE orders ALTER amount TYPE numeric(10,2) USING amount + 1")
    orders.drain()
    assert orders.table_row("public.orders").columns_in_doubt is None
    orders.execute("ALTER TABLE orders ADD COLUMN again float DEFAULT random()")
    orders.drain()
    assert orders.table_row("public.orders").columns_in_doubt is None


def test_a_rewrite_of_a_table_that_may_be_made_unlogged_marks_all_its_columns(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN seen timestamptz DEFAULT clock_timestamp()")
    orders.drain()
    assert orders.table_row("public.orders").backfill_kind == "source_changed"
    assert orders.table_row("public.orders").columns_in_doubt is None


def test_comments_are_kept_with_the_fingerprint_and_mark_nothing(orders: Pipeline) -> None:
    orders.execute("COMMENT ON TABLE orders IS 'what was ordered'", "COMMENT ON COLUMN orders.note IS 'by whom'")
    orders.drain()
    seen = Fingerprint.from_json(orders.table_row("public.orders").fingerprint or {})
    assert (seen.comments(), state(orders)) == ({0: "what was ordered", 3: "by whom"}, ("merging", None))
    orders.execute("COMMENT ON TABLE orders IS NULL", "INSERT INTO orders VALUES (2)")
    orders.drain()
    with leased_plan(orders.task("merge")) as plan:
        assert plan is not None
        assert [table.comments for table in plan.tables] == [{3: "by whom"}]


def test_what_is_not_captured_stands_in_the_tables_comment_with_why(pipeline: Pipeline) -> None:
    pipeline.with_tables(TableRule("public.line", leave_out=("secret",), mask={"email": "sha256"}))
    pipeline.execute(
        "CREATE TABLE line (id int PRIMARY KEY, pieces int, secret text, email text, "
        "double int GENERATED ALWAYS AS (pieces * 2) VIRTUAL, triple int GENERATED ALWAYS AS (pieces * 3) STORED)",
        "COMMENT ON TABLE line IS 'what was ordered.'",
    )
    pipeline.begin()
    pipeline.execute("INSERT INTO line (id) VALUES (1)")
    pipeline.drain()
    row = pipeline.table_row("public.line")
    assert {column.name: column.why for column in row.uncaptured} == {
        "secret": "left out by the pipeline file",
        "email": "masked: sha256",
        "double": "generated, virtual",
        "triple": "generated, not published",
    }
    comments = Fingerprint.from_json(row.fingerprint or {}).comments()
    assert comments[0].startswith("what was ordered. Not captured: secret (left out by the pipeline file), email")
    view = generated_columns.view(pipeline.config, row, source=pipeline.source)
    assert "       (pieces * 2) AS `double`,\n       (pieces * 3) AS `triple`\n" in view
    assert view.endswith("current/public/line`")
