"""Changes of definition that are promised more than the grammar asks of any: that a value is there with the next run,
or that no backfill is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.definitions.book import MakePipeline
from tests.definitions.capturing import NEVER, Capture, Verdict
from tests.support.thorough import either
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.config import TableRule
from tidemark.ledger.captured import schema_versions

TRIGGER = pytest.mark.parametrize("has_trigger", either(without_trigger=False, with_trigger=True))
TABLE = "s1.t"


def begun(capture: Capture, has_trigger: bool, *statements: str) -> None:
    """Captured and level, with what the statements made."""
    capture.pipeline.execute("CREATE SCHEMA s1", *statements)
    capture.begin(all_tables=True, has_trigger=has_trigger)
    capture.run()
    capture.backfills()
    capture.run()
    assert capture.verdict(TABLE, capture.known({})).word == "equal"


def require_repair(capture: Capture) -> None:
    """The next run marks the table, and a backfill makes it equal."""
    assert capture.run_and_judge(TABLE).word == "marked"
    capture.backfills()
    assert capture.run_and_judge(TABLE).word == "equal"


@pytest.mark.some(1)
@TRIGGER
@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "keyless"])
def test_a_default_reaches_a_table_that_nobody_writes_to(
    key: str, has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = f"CREATE TABLE s1.t (id int {key}, v text)"
        begun(
            capture, has_trigger, create, "ALTER TABLE s1.t REPLICA IDENTITY FULL", "INSERT INTO s1.t VALUES (1), (2)"
        )
        pipeline.execute("ALTER TABLE s1.t ADD c int DEFAULT 7, ADD d text DEFAULT 'open' NOT NULL")
        errors = capture.run()
        (table,) = capture.known(errors).rows
        assert capture.lake.targets[table].values(["id", "c", "d"]) == {("1", "7", "open"): 1, ("2", "7", "open"): 1}
        assert capture.verdict(TABLE, capture.known(errors)).word == "equal"


@pytest.mark.some(3)
@TRIGGER
@pytest.mark.parametrize("again", [False, True], ids=["created", "dropped_and_created"])
@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE s1.u ADD w text",),
        ("ALTER TABLE s1.u ADD w text DEFAULT 'x'",),
        ("ALTER TABLE s1.u RENAME v TO w", "ALTER TABLE s1.u ADD v int DEFAULT 5"),
    ],
    ids=["a_column", "a_default", "a_default_under_another_columns_name"],
)
def test_a_column_reaches_a_table_that_was_created_and_filled_before_in_the_same_run(
    statements: tuple[str, ...], again: bool, has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """Its first reading is younger than its changes, so that no reading shows the column as new."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = "CREATE TABLE s1.u (id int PRIMARY KEY, v int)"
        begun(capture, has_trigger, "CREATE TABLE s1.t (id int)", *[create] * again)
        pipeline.execute(*["DROP TABLE s1.u"] * again, create, "INSERT INTO s1.u VALUES (1, 1), (2, 2)", *statements)
        found = capture.run_and_judge("s1.u")
        assert found.word in ("equal", "marked")[: 1 + (not has_trigger)], found
        capture.backfills()
        assert capture.run_and_judge("s1.u").word == "equal"


# The column of the key is renamed, and its old name comes back; then a name goes from one column to another one, whose
# own goes before the next run.
TWO_PAUSES = (
    ("ALTER TABLE s1.t RENAME id TO key", "ALTER TABLE s1.t ADD id text", "INSERT INTO s1.t VALUES (3, 3, 3, 'c')"),
    (
        "ALTER TABLE s1.t DROP w",
        "ALTER TABLE s1.t ADD x int DEFAULT 5",
        "ALTER TABLE s1.t RENAME v TO _z",
        "ALTER TABLE s1.t ADD v int",
        "INSERT INTO s1.t (key, id, _z, v) VALUES (4, 'd', 4, 40)",
        "ALTER TABLE s1.t DROP _z",
    ),
)


@pytest.mark.some(1)
@TRIGGER
@pytest.mark.parametrize("pauses", [False, True], ids=["one_run", "a_run_in_between"])
def test_names_that_go_round_beside_a_renamed_key_never_park(
    pauses: bool, has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = "CREATE TABLE s1.t (id int PRIMARY KEY, v int, w int)"
        begun(capture, has_trigger, create, "INSERT INTO s1.t VALUES (1, 1, 1), (2, 2, 2)")
        for statements in TWO_PAUSES:
            pipeline.execute(*statements)
            if pauses:
                found = capture.run_and_judge(TABLE)
                assert found.word not in NEVER, found
        found = capture.run_and_judge(TABLE)
        assert found.word not in NEVER, found
        capture.run()  # what is built anew can be read from the next run on
        capture.backfills()
        pipeline.execute("UPDATE s1.t SET v = 9, id = 'e' WHERE key = 4")
        found = capture.run_and_judge(TABLE)
        assert found.word == "equal", found


CREATIONS = {
    "empty": ["CREATE TABLE {s}.u (id int PRIMARY KEY, v text)"],
    "filled in its transaction": [
        "BEGIN",
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text)",
        "INSERT INTO {s}.u VALUES (1, 'a')",
        "ALTER TABLE {s}.u ADD c int DEFAULT 7",
        "COMMIT",
    ],
    "altered between its rows": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text)",
        "INSERT INTO {s}.u VALUES (1, 'a')",
        "ALTER TABLE {s}.u ADD c int DEFAULT 7",
        "INSERT INTO {s}.u VALUES (2, 'b', 8)",
        "ALTER TABLE {s}.u RENAME v TO w",
        "UPDATE {s}.u SET w = 'c' WHERE id = 1",
        "ALTER TABLE {s}.u DROP c",
    ],
    "a copy that gets its name": [
        "CREATE TABLE {s}.copy (id int PRIMARY KEY, v text)",
        "INSERT INTO {s}.copy VALUES (1, 'a')",
        "ALTER TABLE {s}.copy RENAME TO u",
        "INSERT INTO {s}.u VALUES (2, 'b')",
    ],
    "of partitions": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE {s}.leaf PARTITION OF {s}.u FOR VALUES FROM (0) TO (10)",
        "INSERT INTO {s}.u VALUES (1, 'a')",
    ],
}
# Each has rows that the stream does not have, or has as another table's.
NOT_WHOLE = {
    "filled while UNLOGGED": [
        "CREATE UNLOGGED TABLE {s}.u (id int PRIMARY KEY, v text)",
        "INSERT INTO {s}.u VALUES (1, 'a')",
        "ALTER TABLE {s}.u SET LOGGED",
    ],
    "altered by USING": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text)",
        "INSERT INTO {s}.u VALUES (1, 'a')",
        "ALTER TABLE {s}.u ALTER v TYPE text USING 'b'",
        "ALTER TABLE {s}.u ALTER v TYPE varchar(5) USING 'c'",
    ],
    "a partition before": [
        "CREATE TABLE {s}.root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE {s}.u PARTITION OF {s}.root FOR VALUES FROM (0) TO (10)",
        "INSERT INTO {s}.root VALUES (1, 'a')",
        "ALTER TABLE {s}.root DETACH PARTITION {s}.u",
    ],
    "of a filled partition": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE {s}.leaf (id int PRIMARY KEY, v text)",
        "INSERT INTO {s}.leaf VALUES (1, 'a')",
        "ALTER TABLE {s}.u ATTACH PARTITION {s}.leaf FOR VALUES FROM (0) TO (10)",
    ],
    "of partitions that go": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE {s}.leaf PARTITION OF {s}.u FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE {s}.other PARTITION OF {s}.u FOR VALUES FROM (10) TO (20)",
        "INSERT INTO {s}.u VALUES (1, 'a'), (11, 'b')",
        "DROP TABLE {s}.other",
    ],
    "in another schema that the file names": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text)",
        "CREATE SCHEMA s_{s}",
        "ALTER TABLE {s}.u SET SCHEMA s_{s}",
        "INSERT INTO s_{s}.u VALUES (1, 'a')",
        "ALTER TABLE s_{s}.u SET SCHEMA {s}",
    ],
    "under another name for a while": [
        "CREATE TABLE {s}.u (id int PRIMARY KEY, v text)",
        "CREATE SCHEMA beside_{s}",
        "ALTER TABLE {s}.u SET SCHEMA beside_{s}",
        "INSERT INTO beside_{s}.u VALUES (1, 'a')",
        "ALTER TABLE beside_{s}.u SET SCHEMA {s}",
    ],
}


def played(capture: Capture, creations: dict[str, list[str]]) -> dict[str, str]:
    """Each in a schema of its own; by it, the name of the creation."""
    schemas = {f"s{number}": name for number, name in enumerate(creations, 2)}
    for schema, name in schemas.items():
        statements = [statement.format(s=schema) for statement in creations[name]]
        capture.pipeline.execute(f"CREATE SCHEMA {schema}", *statements)
    return schemas


def others(capture: Capture, schemas: dict[str, str], word: str) -> dict[str, Verdict]:
    """Behind a run, those of them that are not so."""
    known = capture.known(capture.run())
    verdicts = {name: capture.verdict(f"{schema}.u", known) for schema, name in schemas.items()}
    return {name: verdict for name, verdict in verdicts.items() if verdict.word != word}


def test_tables_that_are_created_beside_the_trigger_need_no_backfill(make_pipeline: MakePipeline) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, True, "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
        schemas = played(capture, CREATIONS)
        assert others(capture, schemas, "equal") == {}
        assert requested_tables(pipeline.task()) == []
        for schema in schemas:
            pipeline.execute(f"INSERT INTO {schema}.u (id) VALUES (5)", f"DELETE FROM {schema}.u WHERE id = 1")
        assert others(capture, schemas, "equal") == {}


def test_tables_with_rows_that_the_stream_lacks_need_one(make_pipeline: MakePipeline) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, True, "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
        schemas = played(capture, NOT_WHOLE)
        assert others(capture, schemas, "marked") == {}
        capture.backfills()
        assert others(capture, schemas, "equal") == {}


# Of each the publication of its schema brings a part alone.
PARTLY_PUBLISHED = {
    "filled elsewhere before": [
        "CREATE TABLE beside.{u} (id int PRIMARY KEY, v text)",
        "INSERT INTO beside.{u} VALUES (1, 'a')",
        "ALTER TABLE beside.{u} SET SCHEMA s1",
    ],
    "elsewhere for a while": [
        "CREATE TABLE s1.{u} (id int PRIMARY KEY, v text)",
        "ALTER TABLE s1.{u} SET SCHEMA beside",
        "INSERT INTO beside.{u} VALUES (1, 'a')",
        "ALTER TABLE beside.{u} SET SCHEMA s1",
        "INSERT INTO s1.{u} VALUES (2, 'b')",
    ],
    "emptied elsewhere": [
        "CREATE TABLE s1.{u} (id int PRIMARY KEY, v text)",
        "INSERT INTO s1.{u} VALUES (1, 'a')",
        "ALTER TABLE s1.{u} SET SCHEMA beside",
        "DELETE FROM beside.{u}",
        "ALTER TABLE beside.{u} SET SCHEMA s1",
    ],
}
WITHOUT_PUBLICATION = {"emptied": "DELETE FROM s1.u", "emptied in part": "DELETE FROM s1.u WHERE id = 1"}


def captured_by_schema(capture: Capture, has_trigger: bool) -> None:
    """The schema s1 is published as a whole, by somebody else."""
    pipeline = capture.pipeline
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.execute("CREATE SCHEMA s1", "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
    pipeline.execute(
        f"CREATE PUBLICATION {pipeline.config.publication} FOR TABLES IN SCHEMA s1 WITH (publish_via_partition_root)"
    )
    pipeline.create_slot()
    capture.begin(all_tables=False, has_trigger=has_trigger)
    capture.run()
    capture.backfills()
    capture.run()


@pytest.mark.some(1)
@TRIGGER
@pytest.mark.parametrize("together", [False, True], ids=["several_transactions", "one_transaction"])
def test_tables_that_their_schemas_publication_has_in_part_need_one(
    together: bool, has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """The trigger says nothing of a table that the publication does not have."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        captured_by_schema(capture, has_trigger)
        pipeline.execute("CREATE SCHEMA beside")
        names = {f"u{number}": name for number, name in enumerate(PARTLY_PUBLISHED)}
        for table, name in names.items():
            statements = [statement.format(u=table) for statement in PARTLY_PUBLISHED[name]]
            pipeline.execute(*(["BEGIN", *statements, "COMMIT"] if together else statements))
        for expected in ("marked", "equal"):
            known = capture.known(capture.run())
            verdicts = {name: capture.verdict(f"s1.{table}", known) for table, name in names.items()}
            assert {name: verdict for name, verdict in verdicts.items() if verdict.word != expected} == {}
            capture.backfills()


@TRIGGER
def test_a_captured_table_that_was_in_another_schema_is_marked_under_another_name_too(
    has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """What changed in the other schema is in no stream. An owner and a name alone change nothing of its rows."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        captured_by_schema(capture, has_trigger)
        pipeline.execute("CREATE SCHEMA beside", "CREATE ROLE somebody")
        try:
            pipeline.execute("ALTER TABLE s1.t OWNER TO somebody", "ALTER TABLE s1.t RENAME TO u")
            pipeline.execute("INSERT INTO s1.u VALUES (2)", "ALTER TABLE s1.u RENAME TO t")
            found = capture.run_and_judge(TABLE)
            assert found.word == "equal", found
            away = ("ALTER TABLE s1.t SET SCHEMA beside", "INSERT INTO beside.t VALUES (3)")
            pipeline.execute(*away, "ALTER TABLE beside.t SET SCHEMA s1", "ALTER TABLE s1.t RENAME TO v")
            found = capture.run_and_judge("s1.v")
            assert found.word == "marked", found
            capture.backfills()
            assert capture.run_and_judge("s1.v").word == "equal"
        finally:
            pipeline.execute("REASSIGN OWNED BY somebody TO CURRENT_USER", "DROP ROLE somebody")


@pytest.mark.some(1)
@TRIGGER
@pytest.mark.parametrize("how", WITHOUT_PUBLICATION)
def test_a_table_that_was_out_of_the_publication_before_its_first_run_needs_one(
    how: str, has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """Also if it is empty, or is empty later: the stream has rows that went then."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        captured_by_schema(capture, has_trigger)
        change = f"ALTER PUBLICATION {pipeline.config.publication} {{}} TABLES IN SCHEMA s1"
        pipeline.execute("CREATE TABLE s1.u (id int PRIMARY KEY, v text)", "INSERT INTO s1.u VALUES (1, 'a'), (2, 'b')")
        pipeline.execute(change.format("DROP"), WITHOUT_PUBLICATION[how], change.format("ADD"))
        for then in ("DELETE FROM s1.u", "INSERT INTO s1.u VALUES (9, 'z')"):
            found = capture.run_and_judge("s1.u")
            assert found.word == "marked", found
            pipeline.execute(then)
        capture.run()
        capture.backfills()
        found = capture.run_and_judge("s1.u")
        assert found.word == "equal", found


@pytest.mark.some(1)
@TRIGGER
@pytest.mark.parametrize("left", [False, True], ids=["empty_at_its_first_run", "empty_later"])
def test_a_root_is_not_complete_because_it_is_empty(left: bool, has_trigger: bool, make_pipeline: MakePipeline) -> None:
    """A partition that is truncated by its name is in no stream, and its rows are."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, has_trigger, "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
        pipeline.execute("CREATE TABLE s1.u (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
        for number in (1, 2):
            bounds = f"FOR VALUES FROM ({number}0) TO ({number}9)"
            pipeline.execute(f"CREATE TABLE s1.leaf{number} PARTITION OF s1.u {bounds}")
        rows = "(11, 'a'), (21, 'b')" if left else "(11, 'a')"
        pipeline.execute(f"INSERT INTO s1.u VALUES {rows}", "TRUNCATE s1.leaf1")
        for _ in range(2):
            found = capture.run_and_judge("s1.u")
            assert found.word == "marked", found
            pipeline.execute("DELETE FROM s1.u")
        capture.run()
        capture.backfills()
        found = capture.run_and_judge("s1.u")
        assert found.word == "equal", found


@TRIGGER
def test_a_new_partition_may_have_defaults_and_be_altered(has_trigger: bool, make_pipeline: MakePipeline) -> None:
    """Its columns' rows in the catalogue are not all as CREATE TABLE wrote them first."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        columns = "id int PRIMARY KEY, v varchar(5), at timestamptz DEFAULT now()"
        begun(capture, has_trigger, f"CREATE TABLE s1.t ({columns}) PARTITION BY RANGE (id)")
        pipeline.execute(
            "BEGIN",
            "CREATE TABLE s1.leaf PARTITION OF s1.t FOR VALUES FROM (0) TO (10)",
            "ALTER TABLE s1.t ALTER v TYPE varchar(50)",
            "COMMIT",
            "INSERT INTO s1.t VALUES (1, 'a'), (2, 'b')",
        )
        found = capture.run_and_judge(TABLE)
        assert found.word == "equal", found


@TRIGGER
def test_a_partition_that_was_filled_before_is_seen_in_its_own_transaction(
    has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        columns = "id int PRIMARY KEY, v varchar(5), at timestamptz DEFAULT now()"
        begun(capture, has_trigger, f"CREATE TABLE s1.t ({columns}) PARTITION BY RANGE (id)")
        pipeline.execute(
            "BEGIN",
            f"CREATE TABLE s1.leaf (gone int, {columns})",
            "INSERT INTO s1.leaf VALUES (0, 1, 'a')",
            "ALTER TABLE s1.leaf DROP gone",
            "ALTER TABLE s1.t ATTACH PARTITION s1.leaf FOR VALUES FROM (0) TO (10)",
            "COMMIT",
        )
        found = capture.run_and_judge(TABLE)
        assert found.word == "marked", found


def test_a_right_on_a_systems_column_makes_no_table_new(make_pipeline: MakePipeline) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        pipeline.execute("CREATE SCHEMA s1", "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
        capture.begin(all_tables=True, has_trigger=True)
        pipeline.execute("CREATE TABLE s1.other (id int PRIMARY KEY)")
        capture.run()
        capture.run()
        rights = "GRANT SELECT (tableoid) ON s1.t TO PUBLIC"
        pipeline.execute("BEGIN", rights, "ALTER TABLE s1.t ADD c int", "COMMIT")
        found = capture.run_and_judge("s1.t")
        assert found.word == "marked", found


@TRIGGER
def test_an_identity_behind_the_first_rows_is_seen_by_the_run_that_meets_them(
    has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """Else the first backfill met it, and ended without the table."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, has_trigger, "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
        pipeline.execute("BEGIN", "CREATE TABLE s1.u AS SELECT 1 AS id, 'a' AS v")
        pipeline.execute("ALTER TABLE s1.u REPLICA IDENTITY FULL", "COMMIT")
        found = capture.run_and_judge("s1.u")
        assert (found.word, "the replica identity changed" in found.why) == ("marked", True)
        capture.run()
        pipeline.plan()
        pipeline.read()
        pipeline.drain()
        capture.lake.merge()
        found = capture.run_and_judge("s1.u")
        assert found.word == "equal", found


@pytest.mark.some(1)
@pytest.mark.parametrize("look", ["preflight first", "drain first"])
def test_names_that_differ_in_case_alone_end_when_one_of_them_goes(look: str, make_pipeline: MakePipeline) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, False, "CREATE TABLE s1.t (id int PRIMARY KEY, total int)", "INSERT INTO s1.t VALUES (1, 1)")
        pipeline.execute('ALTER TABLE s1.t ADD "Total" int', "INSERT INTO s1.t VALUES (2, 2, 20)")
        if look == "drain first":
            pipeline.drain()
            capture.lake.merge()
        found = capture.run_and_judge(TABLE)
        assert found.word in ("parked", "marked"), found
        pipeline.execute('ALTER TABLE s1.t RENAME "Total" TO sum', "INSERT INTO s1.t VALUES (3, 3, 30)")
        found = capture.run_and_judge(TABLE)
        assert found.word == "marked", found
        capture.run()
        capture.backfills()
        found = capture.run_and_judge(TABLE)
        assert found.word == "equal", found


@pytest.mark.some(1)
@pytest.mark.parametrize("look", ["preflight first", "drain first"])
def test_a_key_that_is_left_out_ends_when_the_file_has_it(look: str, make_pipeline: MakePipeline) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        pipeline.with_tables(TableRule("s1.*", leave_out=("w",), line=3))
        create = "CREATE TABLE s1.t (id int CONSTRAINT k PRIMARY KEY, w int NOT NULL)"
        pipeline.execute("CREATE SCHEMA s1", create)
        capture.begin(all_tables=True, has_trigger=False)
        pipeline.execute("INSERT INTO s1.t VALUES (1, 1)")
        capture.run()
        another = "ALTER TABLE s1.t DROP CONSTRAINT k, ADD PRIMARY KEY (w, id)"
        pipeline.execute(another, "INSERT INTO s1.t VALUES (2, 2)")
        if look == "drain first":
            pipeline.drain()
            capture.lake.merge()
        found = capture.run_and_judge(TABLE)
        assert found.word in ("parked", "marked"), found
        pipeline.with_tables(TableRule("s1.*", line=3))
        pipeline.execute("INSERT INTO s1.t VALUES (3, 3)")
        found = capture.run_and_judge(TABLE)
        assert found.word == "marked", found
        capture.run()
        capture.backfills()
        found = capture.run_and_judge(TABLE)
        assert found.word == "equal", found


def test_truncate_of_a_root_beside_an_alteration_that_is_told_needs_no_backfill(make_pipeline: MakePipeline) -> None:
    """All leaves have new storage, and a column was altered. Without the trigger that may be a rewrite by ALTER."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(
            capture,
            True,
            "CREATE TABLE s1.t (id int PRIMARY KEY, v varchar(10), long text) PARTITION BY RANGE (id)",
            "CREATE TABLE s1.low PARTITION OF s1.t FOR VALUES FROM (0) TO (100)",
            "CREATE TABLE s1.high PARTITION OF s1.t FOR VALUES FROM (100) TO (200)",
        )
        pipeline.execute("INSERT INTO s1.t VALUES (1, 'a'), (101, 'b')")
        capture.run()
        pipeline.execute(
            "TRUNCATE s1.t", "ALTER TABLE s1.t ALTER v TYPE text", "INSERT INTO s1.t (id, v) VALUES (2, 'c')"
        )
        assert capture.run_and_judge(TABLE).word == "equal"


@TRIGGER
def test_an_attribute_that_comes_and_goes_marks_what_was_sent_with_it(
    has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """The source reads the row without the attribute by now, and the stream has it with one."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = ("CREATE TYPE s1.pair AS (x int, y int)", "CREATE TABLE s1.t (id int PRIMARY KEY, p s1.pair)")
        begun(capture, has_trigger, *create)
        add, row = "ALTER TYPE s1.pair ADD ATTRIBUTE z int", "INSERT INTO s1.t VALUES (1, ROW(1, 2, 3))"
        pipeline.execute("BEGIN", add, row, "ALTER TYPE s1.pair DROP ATTRIBUTE z", "COMMIT")
        require_repair(capture)


@TRIGGER
def test_a_column_whose_type_lost_an_attribute_is_marked_under_another_name_too(
    has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    """The stream has the column's number, so that its new name alone would need no mark."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = ("CREATE TYPE s1.pair AS (x int, y int)", "CREATE TABLE s1.t (id int PRIMARY KEY, p s1.pair)")
        begun(capture, has_trigger, *create)
        pipeline.execute("INSERT INTO s1.t VALUES (1, ROW(1, 2))")
        capture.run()
        pipeline.execute("ALTER TYPE s1.pair DROP ATTRIBUTE y", "ALTER TABLE s1.t RENAME p TO q")
        require_repair(capture)


# Under a publication FOR ALL TABLES the stream has what a table had before the run whose preflight reads it first.
BEFORE_ITS_JOIN = {
    "columns are added": (
        [
            "ALTER TABLE s1.u ADD c int",
            "INSERT INTO s1.u VALUES (2, 'b', 2)",
            "ALTER TABLE s1.u ADD d int",
            "INSERT INTO s1.u VALUES (3, 'c', 3, 3)",
        ],
        [(1, 2), (1, 2, 3), (1, 2, 3, 4)],
    ),
    "one comes in another one's place": (
        ["ALTER TABLE s1.u DROP v, ADD w text", "INSERT INTO s1.u VALUES (2, 'b')"],
        [(1, 3)],  # nothing says whether the message before has 1 and 2, or 1 and 3
    ),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", BEFORE_ITS_JOIN)
def test_what_is_read_of_a_table_as_it_joins_numbers_no_change_from_before(
    name: str, make_pipeline: MakePipeline
) -> None:
    statements, numbers = BEFORE_ITS_JOIN[name]
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, False, "CREATE TABLE s1.t (id int PRIMARY KEY)", "INSERT INTO s1.t VALUES (1)")
        pipeline.execute("CREATE TABLE s1.u (id int PRIMARY KEY, v text)", "INSERT INTO s1.u VALUES (1, 'a')")
        pipeline.execute(*statements)
        known = capture.known(capture.run())
        table = known.called[known.at_source["s1.u"][0]]
        with pipeline.ledger_connection() as ledger:
            assert [version.published for version in schema_versions.streamed(ledger, table)] == numbers
        capture.run()  # what is built anew can be read from here on
        capture.backfills()
        capture.run()
        assert capture.verdict("s1.u", capture.known({})).word == "equal"


@TRIGGER
def test_a_label_that_has_another_name_for_a_while_marks_what_was_sent_with_it(
    has_trigger: bool, make_pipeline: MakePipeline
) -> None:
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = ("CREATE TYPE s1.mood AS ENUM ('low', 'high')", "CREATE TABLE s1.t (id int PRIMARY KEY, m s1.mood)")
        begun(capture, has_trigger, *create)
        there = "ALTER TYPE s1.mood RENAME VALUE 'low' TO 'deep'"
        back = "ALTER TYPE s1.mood RENAME VALUE 'deep' TO 'low'"
        pipeline.execute(there, "INSERT INTO s1.t VALUES (1, 'deep')", back)
        require_repair(capture)
        pipeline.execute("ALTER TYPE s1.mood ADD VALUE 'mid' BEFORE 'high'", "INSERT INTO s1.t VALUES (2, 'mid')")
        assert capture.run_and_judge(TABLE).word == "equal"


@pytest.mark.some(1)
@TRIGGER
@pytest.mark.parametrize("runs", [1, 2])
def test_a_column_replaced_behind_the_first_changes_of_another_key_is_another_column(
    has_trigger: bool, runs: int, make_pipeline: MakePipeline
) -> None:
    """The table built beside has messages in the shape from before, and the catalogue has a column of the same name and
    type under another number, which several runs see before the next message."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        create = ("CREATE TABLE s1.t (id int CONSTRAINT t_pkey PRIMARY KEY, n int, big text)",)
        begun(capture, has_trigger, *create, "INSERT INTO s1.t VALUES (1, 1, 'a'), (2, 2, 'b')")
        pipeline.execute(
            "ALTER TABLE s1.t REPLICA IDENTITY FULL",
            "ALTER TABLE s1.t DROP CONSTRAINT t_pkey",
            "INSERT INTO s1.t VALUES (1, 1, 'a')",
            "DELETE FROM ONLY s1.t WHERE ctid = (SELECT min(ctid) FROM s1.t WHERE id = 1)",
            "ALTER TABLE s1.t ADD CONSTRAINT key1 PRIMARY KEY (id)",
            "INSERT INTO s1.t VALUES (3, 3, 'c')",
            "UPDATE s1.t SET n = 9 WHERE id = 1",
            "ALTER TABLE s1.t DROP big, ADD big text",
        )
        for _ in range(runs):
            capture.run()
        capture.backfills()
        pipeline.execute("INSERT INTO s1.t VALUES (4, 4, 'd')", "UPDATE s1.t SET big = 'e' WHERE id = 1")
        capture.run()
        capture.backfills()
        assert capture.run_and_judge(TABLE).word == "equal"


@pytest.mark.some(1)
@pytest.mark.parametrize("runs", [1, 2])
def test_a_column_replaced_behind_the_first_changes_of_a_created_table_is_another_column(
    runs: int, make_pipeline: MakePipeline
) -> None:
    """Of the table the ledger has nothing while the trigger's message is read."""
    with make_pipeline() as pipeline:
        capture = Capture(pipeline)
        begun(capture, True, "CREATE TABLE s1.t (id int PRIMARY KEY)")
        create = ("CREATE TABLE s1.u (id int PRIMARY KEY, n int, big text)", "INSERT INTO s1.u VALUES (1, 1, 'a')")
        pipeline.execute(*create, "ALTER TABLE s1.u DROP big, ADD big text")
        pipeline.drain()
        for _ in range(runs):
            capture.run()
        capture.backfills()
        pipeline.execute("INSERT INTO s1.u VALUES (4, 4, 'd')", "UPDATE s1.u SET big = 'e' WHERE id = 1")
        assert capture.run_and_judge("s1.u").word == "equal"
