"""Tables as PostgreSQL's own regression tests alter them, each written anew: columns that go and leave their places to
others, names that come back, alterations that reach children of a table, partitions whose columns lie in other places.

Each is captured by a single run behind everything, by a run at each pause, and by a run behind a backfill that read
what the stream shows no change of; with the event trigger and without. A table without a key has REPLICA IDENTITY FULL,
as somebody who captures it gives it."""

from __future__ import annotations

import pytest

from tests.definitions.book import MakePipeline
from tests.definitions.capturing import NEVER, Capture
from tests.support.thorough import either

# In each, `{s}` is a schema of its own. A list is what happens between two pauses.
_UPSERT = "ON CONFLICT (id) DO UPDATE SET kept = excluded.kept, also = excluded.also"
SCENARIOS: dict[str, list[list[str]]] = {
    # insert_conflict: what is behind dropped columns keeps its place
    "columns_before_others_go": [
        ["CREATE TABLE {s}.t (id int PRIMARY KEY, gone int, kept text, lost numeric, also float8)"],
        [
            "INSERT INTO {s}.t VALUES (1, 10, 'one', 1.5, 2.5), (2, 20, 'two', 2.5, 3.5)",
            "UPDATE {s}.t SET gone = gone + 1, lost = lost + 1, kept = kept || '!' WHERE id = 1",
        ],
        ["ALTER TABLE {s}.t DROP COLUMN gone, DROP COLUMN lost"],
        [
            f"INSERT INTO {{s}}.t (id, kept, also) VALUES (1, 'again', 7) {_UPSERT}",
            f"INSERT INTO {{s}}.t (id, kept, also) VALUES (3, 'three', 8) {_UPSERT}",
        ],
    ],
    # copy: a column is dropped and comes back, then one between the others goes
    "a_column_comes_back_before_any_row": [
        ["CREATE TABLE {s}.t (a int, b int, c text)", "ALTER TABLE {s}.t REPLICA IDENTITY FULL"],
        ["ALTER TABLE {s}.t DROP COLUMN c", "ALTER TABLE {s}.t ADD COLUMN c text"],
        ["INSERT INTO {s}.t VALUES (1, 2, 'x'), (3, 4, 'y')"],
        ["ALTER TABLE {s}.t DROP COLUMN b"],
        ["INSERT INTO {s}.t (c, a) VALUES ('z', 7), ('w', 8)", "UPDATE {s}.t SET c = 'v' WHERE a = 3"],
    ],
    # insert: partitions of partitions, columns that go from the topmost one, a partition with another order of columns
    "partitions_with_columns_in_other_places": [
        [
            "CREATE TABLE {s}.t (a int, b int, c text) PARTITION BY RANGE (a, b)",
            "ALTER TABLE {s}.t REPLICA IDENTITY FULL",
            "ALTER TABLE {s}.t ADD d int, ADD e int",
            "ALTER TABLE {s}.t DROP e",
            "CREATE TABLE {s}.some PARTITION OF {s}.t FOR VALUES FROM (1, 0) TO (1, 90) PARTITION BY LIST (c)",
            "ALTER TABLE {s}.some REPLICA IDENTITY FULL",
            "CREATE TABLE {s}.one PARTITION OF {s}.some FOR VALUES IN ('a')",
            "ALTER TABLE {s}.one REPLICA IDENTITY FULL",
            "CREATE TABLE {s}.two (d int, b int, c text, a int)",
            "ALTER TABLE {s}.two REPLICA IDENTITY FULL",
            "ALTER TABLE {s}.some ATTACH PARTITION {s}.two FOR VALUES IN ('b')",
        ],
        ["INSERT INTO {s}.t VALUES (1, 2, 'a', 1), (1, 40, 'a', 1), (1, 45, 'b', 1)"],
        ["ALTER TABLE {s}.t DROP d", "TRUNCATE {s}.t"],
        ["ALTER TABLE {s}.t ADD e int, ADD d int", "ALTER TABLE {s}.t DROP e"],
        [
            "INSERT INTO {s}.t VALUES (1, 2, 'a', 5), (1, 40, 'a', 6), (1, 45, 'b', 7)",
            "UPDATE {s}.t SET d = d + 1 WHERE c = 'b'",
        ],
    ],
    # create_misc: a chain of children; each table's column gets another name, then a new one the old name
    "names_in_a_chain_of_children": [
        [
            "CREATE TABLE {s}.a_of (class char, a int)",
            "CREATE TABLE {s}.b_of (b text) INHERITS ({s}.a_of)",
            "CREATE TABLE {s}.c_of (c name) INHERITS ({s}.a_of)",
            "CREATE TABLE {s}.d_of (d float8) INHERITS ({s}.b_of, {s}.c_of)",
            "CREATE TABLE {s}.e_of (e smallint) INHERITS ({s}.c_of)",
            "CREATE TABLE {s}.f_of (f polygon) INHERITS ({s}.e_of)",
            *(f"ALTER TABLE {{s}}.{letter}_of REPLICA IDENTITY FULL" for letter in "abcdef"),
        ],
        [
            "INSERT INTO {s}.a_of (class, a) VALUES ('a', 1), ('a', NULL)",
            "INSERT INTO {s}.b_of (class, a, b) VALUES ('b', 3, 'mop'), ('b', 4, NULL)",
            "INSERT INTO {s}.c_of (class, a, c) VALUES ('c', 5, 'hi mike'), ('c', NULL, 'hi alan')",
            "INSERT INTO {s}.d_of (class, a, b, c, d) VALUES ('d', 6, 'boris', 'chess', 0.5), ('d', 7, NULL, NULL, 8)",
            "INSERT INTO {s}.e_of (class, a, c, e) VALUES ('e', 15, 'hi carol', -1), ('e', NULL, 'hi bob', NULL)",
            "INSERT INTO {s}.f_of (class, a, c, e, f) VALUES ('f', 19, 'hi claire', -5, '(1,3),(2,4)'), "
            "('f', 20, 'hi mike', -6, NULL)",
        ],
        [
            "ALTER TABLE {s}.f_of RENAME COLUMN f TO ff",
            "ALTER TABLE {s}.e_of RENAME COLUMN e TO ee",
            "ALTER TABLE {s}.d_of RENAME COLUMN d TO dd",
            "ALTER TABLE {s}.c_of RENAME COLUMN c TO cc",
            "ALTER TABLE {s}.b_of RENAME COLUMN b TO bb",
            "ALTER TABLE {s}.a_of RENAME COLUMN a TO aa",
        ],
        ["ALTER TABLE {s}.a_of RENAME COLUMN aa TO other", "ALTER TABLE {s}.a_of RENAME COLUMN other TO aa"],
        ["ALTER TABLE {s}.f_of ADD COLUMN f int", "UPDATE {s}.f_of SET f = 10"],
        ["ALTER TABLE {s}.e_of ADD COLUMN e int", "ALTER TABLE {s}.a_of ADD COLUMN a text"],
        ["UPDATE {s}.b_of SET a = 'late' WHERE aa > 3", "INSERT INTO {s}.e_of (class, aa, e) VALUES ('e', 40, 41)"],
    ],
}


@pytest.mark.some(1)
@pytest.mark.parametrize("has_trigger", either(without_trigger=False, with_trigger=True))
@pytest.mark.parametrize("way", ["one run", "a run at each pause", "a backfill first"])
def test_tables_are_never_parked_and_end_equal(way: str, has_trigger: bool, make_pipeline: MakePipeline) -> None:
    with make_pipeline() as pipeline:
        schemas = {f"s{number}": pieces for number, pieces in enumerate(SCENARIOS.values())}
        capture = Capture(pipeline)
        _play(capture, {schema: [pieces[0]] for schema, pieces in schemas.items()}, pauses=False)
        capture.begin(all_tables=True, has_trigger=has_trigger)
        capture.run()
        _play(capture, {schema: pieces[1:] for schema, pieces in schemas.items()}, pauses=way == "a run at each pause")
        if way == "a backfill first":
            pipeline.plan(tables=("s*.*",), replace=True)
            pipeline.read()
        errors = capture.run()
        assert not errors
        assert _wrong(capture, NEVER) == {}
        capture.run()  # A table that is built anew can be read from the next run on.
        capture.backfills()
        capture.run()
        assert _wrong(capture, (*NEVER, "marked")) == {}


def _play(capture: Capture, schemas: dict[str, list[list[str]]], *, pauses: bool) -> None:
    for number in range(max(map(len, schemas.values()))):
        for schema, pieces in schemas.items():
            for statement in pieces[number] if number < len(pieces) else ():
                capture.pipeline.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}", statement.format(s=schema))
        if pauses:
            capture.run()


def _wrong(capture: Capture, words: tuple[str, ...]) -> dict[str, str]:
    """Of all tables but partitions, what has one of these words."""
    known = capture.known({})
    names = capture.pipeline.query(
        "SELECT n.nspname || '.' || c.relname, c.relkind = 'p' FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE n.nspname LIKE 's%' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
    )
    verdicts = {
        name: capture.verdict(name, known, only=name if is_partitioned else f"ONLY {name}")
        for name, is_partitioned in names
    }
    return {name: str(verdict) for name, verdict in verdicts.items() if verdict.word in words}
