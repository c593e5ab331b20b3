"""Of the decoding tests nothing is left out but what calls a function of slots."""

from __future__ import annotations

from tests.witnesses.decoding_suites import without_slots


def test_only_statements_about_slots_are_left_out() -> None:
    statements = (
        "SELECT 'init' FROM pg_create_logical_replication_slot('s', 'test_decoding'); -- first\n"
        "CREATE TABLE t (id int);\n"
        "SELECT data\nFROM pg_logical_slot_get_changes('s', NULL, NULL);\n"
        "INSERT INTO t VALUES (1);\n"
        "SELECT slot_name FROM pg_replication_slots;\n"
    )
    kept = "CREATE TABLE t (id int);\nINSERT INTO t VALUES (1);\nSELECT slot_name FROM pg_replication_slots;\n"
    assert without_slots(statements) == (kept, 2)
