"""The event trigger at the source: what it writes into the stream, that it is in nobody's way, and when it is
trusted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.support import servers
from tests.support.pipeline import pipeline_config
from tests.support.roles import login
from tidemark.config import PipelineConfig
from tidemark.formats.definition import (
    PREFIX,
    DefinedRelation,
    Definition,
    DroppedRelation,
    Keys,
    UnknownDefinition,
    parse,
)
from tidemark.postgres import postgres_session
from tidemark.source import event_trigger
from tidemark.source.event_trigger import InstalledTrigger


@dataclass
class Source:
    """A database with a publication and its trigger; `written` is what the trigger wrote since it was asked last."""

    conninfo: str
    config: PipelineConfig
    conn: psycopg.Connection[Any]
    sessions: list[psycopg.Connection[Any]] = field(default_factory=list)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.conn.execute(statement.encode())

    def one(self, query: str) -> Any:
        row = self.conn.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def oid(self, name: str) -> int:
        return int(self.one(f"SELECT '{name}'::regclass::oid"))

    def another(self, user: str | None = None) -> psycopg.Connection[Any]:
        conninfo = self.conninfo if user is None else make_conninfo(self.conninfo, user=user)
        self.sessions.append(psycopg.connect(conninfo, autocommit=True))
        return self.sessions[-1]

    def installed(self, conninfo: str | None = None) -> InstalledTrigger:
        with postgres_session.connect(conninfo or self.conninfo, application_name="test") as session:
            found = event_trigger.installed_trigger(session, self.config)
        assert found is not None
        return found

    @property
    def keys(self) -> Keys:
        keys = self.installed().keys
        assert keys is not None
        return keys

    def raw(self) -> list[tuple[bytes, int]]:
        """Each message with the trigger's prefix, and the transaction that brought it."""
        rows = self.conn.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s, 'messages', 'true')",
            (self.config.slot, self.config.publication),
        ).fetchall()
        messages, xid = [], 0
        for (data,) in rows:
            if data[:1] == b"B":
                xid = int.from_bytes(data[17:21], "big")
            elif data[:1] == b"M" and data[10:].startswith(PREFIX.encode() + b"\0"):
                content = data[10 + len(PREFIX) + 1 + 4 :]
                messages += [(content, xid)] if content else []
        return messages

    def written(self) -> list[Definition | None]:
        keys = self.keys
        return [parse(content, xid, keys, self.config.publication) for content, xid in self.raw()]

    def after(self, *statements: str) -> list[Definition | None]:
        self.raw()
        self.execute(*statements)
        return self.written()

    def last(self, *statements: str) -> DefinedRelation:
        """What is written last of them."""
        definition = self.after(*statements)[-1]
        assert isinstance(definition, DefinedRelation), definition
        return definition


@pytest.fixture(scope="module", params=servers.ANY)
def server(request: pytest.FixtureRequest) -> PostgresServer:
    server: PostgresServer = request.getfixturevalue(servers.NAMES[request.param])
    return server


@pytest.fixture
def source(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Source]:
    conninfo = create_database(server, "source")
    name = str(conninfo_to_dict(conninfo)["dbname"])
    config = pipeline_config(f"trigger_{name}", "lake")
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(f"CREATE PUBLICATION {config.publication} FOR ALL TABLES".encode())
        conn.execute(event_trigger.create_sql(config, "postgres").encode())
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (config.slot,))
        source = Source(conninfo, config, conn)
        yield source
        for session in source.sessions:
            session.close()
        conn.execute("SELECT pg_drop_replication_slot(%s)", (config.slot,))
    drop_database(server, conninfo)


def numbers(definition: Definition | None) -> list[tuple[int, str]]:
    assert isinstance(definition, DefinedRelation), definition
    return [(column.attnum, column.name) for column in definition.columns]


# --- what is written --------------------------------------------------------------------------------------------------


def test_every_change_of_one_transaction_stands_in_the_stream_in_order(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, s text)")
    written = source.after(
        "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t RENAME s TO was_s; ALTER TABLE t DROP c; "
        "ALTER TABLE t ADD c text; COMMIT"
    )
    assert [numbers(one) for one in written] == [
        [(1, "id"), (2, "s"), (3, "c")],
        [(1, "id"), (2, "was_s"), (3, "c")],
        *[[(1, "id"), (2, "was_s")]] * 2,  # by sql_drop, and by the end of the command
        [(1, "id"), (2, "was_s"), (4, "c")],
    ]
    first = written[0]
    assert isinstance(first, DefinedRelation)
    column = first.columns[2]
    assert (column.type_oid, column.typmod, column.has_missing, column.missing) == (23, -1, True, "5")
    assert (first.oid, first.schema, first.name, first.relkind) == (source.oid("t"), "public", "t", "r")
    assert (first.persistence, first.identity, first.key, first.above, first.listed) == ("p", "d", (1,), (), None)


def test_what_is_rolled_back_to_a_savepoint_is_in_no_message(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    written = source.after(
        "BEGIN; SAVEPOINT a; ALTER TABLE t ADD gone int; ROLLBACK TO a; SAVEPOINT b; ALTER TABLE t ADD kept int; "
        "RELEASE b; COMMIT",
        "BEGIN; ALTER TABLE t ADD never int; ROLLBACK",
    )
    assert [numbers(one) for one in written] == [[(1, "id"), (2, "kept")]]


def test_identity_persistence_and_storage_follow_the_statements(source: Source) -> None:
    assert source.last("CREATE TABLE t (b int NOT NULL, a int NOT NULL, PRIMARY KEY (a, b))").key == (2, 1)
    assert source.last("CREATE UNIQUE INDEX one ON t (b); ALTER TABLE t REPLICA IDENTITY USING INDEX one").key == (1,)
    by_index = source.last("ALTER TABLE t ADD c int DEFAULT 1")
    assert by_index.identity == "i"
    gone = source.last("DROP INDEX one")
    assert (gone.identity, gone.key) == ("i", ())
    full = source.last("ALTER TABLE t REPLICA IDENTITY FULL")
    assert (full.identity, full.key) == ("f", (2, 1))
    assert source.last("ALTER TABLE t DROP CONSTRAINT t_pkey").key == ()
    unlogged = source.last("ALTER TABLE t SET UNLOGGED")
    assert (unlogged.persistence, unlogged.filenode != full.filenode) == ("u", True)
    rewritten = source.last("ALTER TABLE t ALTER c TYPE bigint")
    assert (rewritten.filenode != unlogged.filenode, rewritten.columns[2].type_oid) == (True, 20)
    assert rewritten.filenode == source.one("SELECT pg_relation_filenode('t')")


def test_a_partition_names_the_tables_above_it(source: Source) -> None:
    root = source.last("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    assert (root.relkind, root.filenode) == ("p", 0)
    middle = source.last("CREATE TABLE m PARTITION OF r FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)")
    leaf = source.last("CREATE TABLE l PARTITION OF m FOR VALUES FROM (0) TO (9)")
    assert leaf.above == (middle.oid, root.oid)
    assert source.last("CREATE UNLOGGED TABLE u (id int PRIMARY KEY)").above == ()
    attached = source.after("ALTER TABLE r ATTACH PARTITION u FOR VALUES FROM (9) TO (20)")
    by_oid = {one.oid: one for one in attached if isinstance(one, DefinedRelation)}
    assert (by_oid[source.oid("u")].above, by_oid[source.oid("u")].persistence) == ((root.oid,), "u")
    added = source.after("ALTER TABLE r ADD v text")
    assert {one.oid for one in added if isinstance(one, DefinedRelation)} == {
        root.oid,
        middle.oid,
        leaf.oid,
        source.oid("u"),
    }
    assert [one.oid for one in source.after("ALTER TABLE l SET (fillfactor = 90)") if one is not None] == [leaf.oid]
    assert source.after("DROP TABLE l") == [DroppedRelation(leaf.oid)]


def test_a_child_of_an_inheritance_tree_is_told_of_as_its_parent_is(source: Source) -> None:
    source.execute("CREATE TABLE parent (id int)", "CREATE TABLE child (own int) INHERITS (parent)")
    written = source.after("ALTER TABLE parent ADD v text")
    assert sorted(one.name for one in written if isinstance(one, DefinedRelation)) == ["child", "parent"]
    dropped = source.after("ALTER TABLE parent DROP v")
    assert {one.name for one in dropped if isinstance(one, DefinedRelation)} == {"child", "parent"}


def test_a_type_that_is_altered_is_told_of_with_every_table_that_uses_it(source: Source) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE DOMAIN felt AS mood",
        "CREATE TYPE pair AS (a felt, b int)",
        "CREATE TABLE by_enum (id int PRIMARY KEY, m mood)",
        "CREATE TABLE by_array (id int PRIMARY KEY, m mood[])",
        "CREATE TABLE by_composite (id int PRIMARY KEY, p pair)",
        "CREATE TABLE by_none (id int PRIMARY KEY)",
    )

    def told(*statements: str) -> list[str]:
        return sorted(one.name for one in source.after(*statements) if isinstance(one, DefinedRelation))

    assert told("ALTER TYPE mood ADD VALUE 'bad'") == ["by_array", "by_composite", "by_enum"]
    assert told("ALTER TYPE mood RENAME VALUE 'bad' TO 'sad'") == ["by_array", "by_composite", "by_enum"]
    assert told("ALTER DOMAIN felt ADD CONSTRAINT known CHECK (value IS NOT NULL) NOT VALID") == ["by_composite"]
    assert told("ALTER TYPE pair RENAME ATTRIBUTE b TO c") == ["by_composite"]
    assert told("DROP TYPE mood CASCADE") == ["by_array", "by_enum"]
    array = source.last("CREATE TYPE size AS ENUM ('s')", "CREATE TABLE sized (id int PRIMARY KEY, s size[])")
    assert {(one.name, one.kind) for one in array.types} == {("_size", "b"), ("size", "e")}


def test_only_what_is_published_is_told_of(source: Source) -> None:
    publication = source.config.publication
    source.execute(
        f"DROP PUBLICATION {publication}",
        "CREATE SCHEMA whole",
        "CREATE TABLE listed (id int PRIMARY KEY, v text, w text)",
        f"CREATE PUBLICATION {publication} FOR TABLE listed (id, w)",
    )
    assert source.after("CREATE TABLE other (id int PRIMARY KEY)", "ALTER TABLE other ADD v int") == []
    assert source.last("ALTER TABLE listed ADD x int").listed == (1, 3)
    assert source.last(f"ALTER PUBLICATION {publication} ADD TABLE other").name == "other"
    source.execute(f"ALTER PUBLICATION {publication} SET TABLES IN SCHEMA whole")
    assert source.last("CREATE TABLE whole.new (id int PRIMARY KEY)").name == "new"
    assert source.after("ALTER TABLE other ADD w int", "CREATE TEMP TABLE passing (id int)") == []


def test_a_value_is_written_as_a_chunk_would_have_it(source: Source) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "SET TimeZone = 'Asia/Tokyo'",
        "SET DateStyle = 'German'",
        "SET extra_float_digits = -15",
        "SET bytea_output = 'escape'",
    )
    last = source.last(
        "ALTER TABLE t ADD at timestamptz DEFAULT '2026-01-02 03:04:05+00', ADD f float8 DEFAULT 0.1234567890123456, "
        "ADD b bytea DEFAULT '\\x00ff', ADD nothing int DEFAULT NULL, ADD long text DEFAULT repeat('x', 2000)"
    )
    assert [(c.has_missing, c.missing) for c in last.columns[1:]] == [
        (True, "2026-01-02 03:04:05+00"),
        (True, "0.1234567890123456"),
        (True, "\\x00ff"),
        (False, None),
        (True, None),
    ]


def test_names_of_any_letters_are_read_back(source: Source) -> None:
    last = source.last('CREATE TABLE "Zoë ""x"" 表" (id int PRIMARY KEY, "ключ\n" text)')
    assert (last.name, last.columns[1].name) == ('Zoë "x" 表', "ключ\n")


# --- in nobody's way --------------------------------------------------------------------------------------------------


def test_an_older_snapshot_makes_the_definition_unknown(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.raw()
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
    source.another().execute("ALTER TABLE t ADD seen_by_nobody int")
    source.execute("ALTER TABLE t ADD own int", "COMMIT")
    first, second = source.written()
    assert numbers(first) == [(1, "id"), (2, "seen_by_nobody")]
    assert second == UnknownDefinition(source.oid("t"))


@pytest.mark.parametrize(
    "broken",
    [
        "DROP MATERIALIZED VIEW {schema}.keys",
        "REFRESH MATERIALIZED VIEW {schema}.keys WITH NO DATA",
        "DROP FUNCTION {schema}.tell(oid[])",
        "DROP FUNCTION {schema}.emit(json)",
    ],
)
def test_an_error_within_fails_no_statement_and_is_told(source: Source, broken: str) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    keys = source.keys
    source.execute(broken.format(schema=event_trigger.schema_of(source.config)))
    source.raw()
    source.execute("ALTER TABLE t ADD v text", "INSERT INTO t VALUES (1, 'v')", "DROP TABLE t")
    written = [parse(content, xid, keys, source.config.publication) for content, xid in source.raw()]
    assert set(written) == {UnknownDefinition(None)}
    assert source.installed().problem is not None


def test_a_trigger_that_may_write_nothing_fails_no_statement(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE ROLE definer SUPERUSER")
    schema = event_trigger.schema_of(source.config)
    try:
        for function in ("emit(json)", "tell(oid[])", "on_change()", "on_drop()", "on_rewrite()"):
            source.execute(f"ALTER FUNCTION {schema}.{function} OWNER TO definer")
        source.execute(f"ALTER SCHEMA {schema} OWNER TO definer", f"ALTER TABLE {schema}.keys OWNER TO definer")
        for event in ("end", "drop", "write"):
            source.execute(f"ALTER EVENT TRIGGER {schema}_{event} OWNER TO definer")
        assert source.installed().problem is None
        source.execute("ALTER ROLE definer NOSUPERUSER")
        for form in ("text", "bytea"):
            rest = ", bool" if source.conn.info.server_version >= 170000 else ""
            source.execute(f"REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(bool, text, {form}{rest}) FROM PUBLIC")
        source.raw()
        source.execute("ALTER TABLE t ADD v text")
        assert source.raw() == []
        assert source.installed().problem == "its owner may not execute pg_logical_emit_message"
    finally:
        source.execute(
            "ALTER ROLE definer SUPERUSER",
            event_trigger.drop_sql(source.config),
            "DROP OWNED BY definer",
            "DROP ROLE definer",
        )


def test_a_lock_on_what_it_reads_keeps_no_statement_waiting(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    keys = source.keys
    source.raw()
    holder = source.another()
    schema = event_trigger.schema_of(source.config)
    holder.execute(f"BEGIN; REFRESH MATERIALIZED VIEW {schema}.keys".encode())
    source.execute("ALTER TABLE t ADD v text")
    holder.execute("ROLLBACK")
    written = [parse(content, xid, keys, source.config.publication) for content, xid in source.raw()]
    assert written == [UnknownDefinition(None)]


def test_anybody_may_alter_what_he_owns(source: Source) -> None:
    role = f"someone_{source.config.slot}"
    source.execute(login(role, source.conninfo), "CREATE SCHEMA own", f"ALTER SCHEMA own OWNER TO {role}")
    try:
        session = source.another(role)
        session.execute("SET search_path = own")
        # None of the functions that the trigger calls may be a stranger's.
        session.execute(
            "CREATE FUNCTION sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT ''stolen''::bytea'; "
            "CREATE FUNCTION encode(bytea, text) RETURNS text LANGUAGE sql AS 'SELECT ''stolen''::text'"
        )
        source.raw()
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        assert [numbers(one) for one in source.written()] == [[(1, "id")]]
        schema = event_trigger.schema_of(source.config)
        for query in (f"SELECT * FROM {schema}.keys", f"SELECT {schema}.emit('{{}}')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(query.encode())
    finally:
        for session in source.sessions:
            session.close()
        source.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_it_is_not_silent_for_a_replica(source: Source) -> None:
    assert source.last("SET session_replication_role = replica", "CREATE TABLE t (id int PRIMARY KEY)").name == "t"


# --- trust ------------------------------------------------------------------------------------------------------------


def test_what_a_stranger_writes_is_no_definition(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, s text)")
    source.raw()
    source.execute("ALTER TABLE t ADD v text")
    ((content, _),) = source.raw()
    forged = {"publication": source.config.publication, "definition": {"kind": "dropped", "oid": source.oid("t")}}
    for text in (content, json.dumps(forged).encode(), b"0" * 64 + json.dumps(forged).encode(), b"{}", b"\0" * 100):
        source.conn.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (PREFIX, text))
    assert source.written() == [None] * 5


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("ALTER EVENT TRIGGER {schema}_end DISABLE", "not enabled always"),
        ("ALTER EVENT TRIGGER {schema}_drop ENABLE REPLICA", "not enabled always"),
        ("DROP EVENT TRIGGER {schema}_drop", "is missing"),
        (
            "CREATE OR REPLACE FUNCTION {schema}.on_drop() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
            "not those that this version",
        ),
        ("ALTER FUNCTION {schema}.on_change() SET search_path = public", "not those that this version"),
        ("ALTER FUNCTION {schema}.on_change() SECURITY INVOKER", "not those that this version"),
        ("ALTER FUNCTION {schema}.tell(oid[]) OWNER TO pg_monitor", "several roles"),
        ("ALTER SCHEMA {schema} OWNER TO pg_monitor", "several roles"),
        ("GRANT EXECUTE ON FUNCTION {schema}.emit(json) TO PUBLIC", "others than its owner"),
        ("GRANT SELECT ON {schema}.keys TO pg_monitor", "others than its owner"),
        ("DROP MATERIALIZED VIEW {schema}.keys", "its keys are gone"),
    ],
)
def test_a_trigger_that_is_not_as_it_was_made_is_not_trusted(source: Source, statement: str, problem: str) -> None:
    assert source.installed().problem is None
    source.execute(statement.format(schema=event_trigger.schema_of(source.config)))
    assert problem in (source.installed().problem or "")
    assert source.installed().keys is None


def test_it_is_trusted_from_the_last_transaction_on_that_changed_it(source: Source) -> None:
    made = source.installed().since_xid
    schema = event_trigger.schema_of(source.config)
    source.execute(f"ALTER EVENT TRIGGER {schema}_end DISABLE")
    disabled = int(source.one("SELECT pg_current_xact_id()::text"))
    source.execute(f"ALTER EVENT TRIGGER {schema}_end ENABLE ALWAYS")
    assert source.installed().problem is None
    assert source.installed().since_xid > disabled > made


def test_the_pipelines_role_reads_what_it_needs_and_others_do_not(source: Source) -> None:
    role = f"pipeline_{source.config.slot}"
    source.execute(login(role, source.conninfo, "REPLICATION"))
    conninfo = make_conninfo(source.conninfo, user=role)
    try:
        assert "may not read its keys" in (source.installed(conninfo).problem or "")
        source.execute(event_trigger.create_sql(source.config, role))
        assert source.installed(conninfo).keys is not None
        assert "others than its owner" in (source.installed().problem or ""), "to any other role"
    finally:
        source.execute(event_trigger.drop_sql(source.config), f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_nothing_of_it_is_left_behind(source: Source) -> None:
    source.execute(event_trigger.drop_sql(source.config))
    with postgres_session.connect(source.conninfo, application_name="test") as session:
        assert event_trigger.installed_trigger(session, source.config) is None
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert source.raw() == []


def test_a_long_name_of_a_slot_gives_names_that_postgresql_does_not_cut(source: Source) -> None:
    slots = ["a" * 63, "a" * 62 + "b", "a" * 55, "a" * 54]
    configs = [replace(source.config, slot=slot) for slot in slots]
    assert len({event_trigger.schema_of(config) for config in configs}) == len(slots)
    for config in configs:
        source.execute(event_trigger.create_sql(config, "postgres"))
    with postgres_session.connect(source.conninfo, application_name="test") as session:
        found = [event_trigger.installed_trigger(session, config) for config in configs]
    assert [one is not None and one.problem for one in found] == [None] * len(slots)


def test_it_survives_a_dump_and_its_restore(source: Source, server: PostgresServer) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    before = source.keys
    dump = [server.binary("pg_dump"), "--inserts", f"--dbname={source.conninfo}"]
    script = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    assert before.inner.hex() not in script
    restored = create_database(server, "restored")
    try:
        with psycopg.connect(restored, autocommit=True) as conn:
            lines = [line for line in script.splitlines() if not line.startswith("\\")]
            conn.execute("\n".join(lines).encode())
        with postgres_session.connect(restored, application_name="test") as session:
            found = event_trigger.installed_trigger(session, source.config)
        assert found is not None
        assert found.problem is None
        assert found.keys not in (None, before)
    finally:
        drop_database(server, restored)
