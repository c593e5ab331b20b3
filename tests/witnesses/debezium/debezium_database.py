"""A database of the witnesses that Debezium's engine reads, in the place of a `CapturedDatabase`.

    file ──► source ──its own slot and publication──► engine ──events──► rows by key ──► compared at the file's end

Compared are the published columns of each table that the source still has. The harness writes every DDL command into
an unlogged table, which no publication has, so that a difference can be put down to what was done to its table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql

from tests.witnesses.captured_database import FULL_IDENTITY, CapturedDatabase, TableVerdict, error_of
from tests.witnesses.debezium.change_events import PeerTable
from tests.witnesses.debezium.comparable_values import of_event, of_text
from tests.witnesses.debezium.engine import SLOT, Engine
from tidemark.names import TableName

MARKERS: Final = "public.witness_marker"
_DDL_LOG: Final = """
CREATE UNLOGGED TABLE public.witness_ddl (tag text, id oid, name text);
CREATE FUNCTION public.note_ddl() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_EVENT = 'sql_drop' THEN
        INSERT INTO public.witness_ddl SELECT 'DROP', objid, schema_name || '.' || object_name
          FROM pg_event_trigger_dropped_objects() WHERE object_type = 'table' AND NOT is_temporary;
    ELSE
        INSERT INTO public.witness_ddl SELECT d.command_tag, d.objid, n.nspname || '.' || c.relname
          FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p');
    END IF;
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
CREATE EVENT TRIGGER a_note_ddl ON ddl_command_end EXECUTE FUNCTION public.note_ddl();
CREATE EVENT TRIGGER a_note_drop ON sql_drop EXECUTE FUNCTION public.note_ddl();
"""
_PUBLISHED: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind = 'p', c.relreplident,
       array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (p.attnames)
              ORDER BY a.attnum),
       array(SELECT a.atttypid::bigint FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (p.attnames)
              ORDER BY a.attnum)
  FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = 'peer' AND p.attnames <> '{}' ORDER BY c.oid
"""
_SESSION: Final = "-c timezone=UTC -c intervalstyle=postgres -c datestyle=ISO -c row_security=off"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A published table: its columns by name, with their types' names below domains."""

    oid: int
    name: str
    is_root: bool
    has_full_identity: bool
    kinds: dict[str, str]
    reference: sql.Composable


@dataclass
class DebeziumDatabase(CapturedDatabase):
    """`states` has by table what the last verdict was on."""

    engine: Engine = field(kw_only=True)
    states: dict[str, object] = field(default_factory=dict)
    _markers: Iterator[int] = field(default_factory=lambda: count(1))

    def begin(self, published: str, *, has_trigger: bool) -> None:
        self.environment.execute(
            FULL_IDENTITY,
            _DDL_LOG,
            f"CREATE TABLE {MARKERS} (id int PRIMARY KEY)",
            f"CREATE PUBLICATION {SLOT} {published} WITH (publish_via_partition_root)",
        )
        self.take_slot()
        self.engine.take_new_slot = self.take_slot
        self.engine.start()
        self.run()

    def take_slot(self) -> None:
        """The engine's slot, begun now."""
        of_slot = f"FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        self.environment.sql(
            f"SELECT pg_terminate_backend(active_pid) {of_slot} AND active",
            "SELECT pg_sleep(1)",
            f"SELECT pg_drop_replication_slot(slot_name) {of_slot}",
        )
        self.environment.sql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")

    def drain(self) -> str | None:
        return None

    def run(self) -> str | None:
        """Wait for all events."""
        errors: list[str | None] = []
        failed = error_of(lambda: errors.append(self.engine.wait_for_marker(self._mark)))
        return failed or errors[0]

    def repair(self) -> str | None:
        return None

    def _mark(self) -> int:
        number = next(self._markers)
        self.environment.sql(f"INSERT INTO {MARKERS} VALUES ({number})")
        return number

    def _verdicts(self, file_of: Callable[[TableName], str | None]) -> Iterator[TableVerdict]:
        with psycopg.connect(self.environment.source, autocommit=True, options=_SESSION) as connection:
            tables = _published(connection)
            for table in tables.values():
                file = file_of(TableName.parse(table.name))
                if file is not None and table.name != MARKERS:
                    yield from self._verdict(connection, file, table)
        for name, held in self.engine.events.tables.items():
            if name not in tables and self.states.get(name) != held.events:
                self.states[name] = held.events
                if file := file_of(TableName.parse(name)):
                    yield TableVerdict(file, name, "dropped")

    def _verdict(self, connection: psycopg.Connection[Any], file: str, table: SourceTable) -> Iterator[TableVerdict]:
        held = self.engine.events.tables.get(table.name)
        query = sql.SQL("SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t").format(table.reference)
        state = (table.oid, held and held.events, connection.execute(query).fetchone(), tuple(table.kinds.items()))
        if self.states.get(table.name) == state:
            return
        self.states[table.name] = state
        if state[1] is None and state[2][0] == 0:
            return
        wrong = differences(_source_rows(connection, table), held, table)
        if not wrong:
            yield TableVerdict(file, table.name, "equal")
            return
        done = self._done_to(connection, table, held)
        yield TableVerdict(file, table.name, "differs", f"{done}: {wrong}")

    def _done_to(self, connection: psycopg.Connection[Any], table: SourceTable, held: PeerTable | None) -> str:
        """What the DDL log has of a table that differs, the most far-reaching first."""
        if held is None:
            return "no event of it came"
        of_name = connection.execute("SELECT DISTINCT id FROM public.witness_ddl WHERE name = %s", (table.name,))
        others = {oid for (oid,) in of_name} - {table.oid}
        log = connection.execute("SELECT tag, name FROM public.witness_ddl WHERE id = %s", (table.oid,)).fetchall()
        if others:
            return "another table had its name before"
        if any(name != table.name for _, name in log):
            return "renamed, or moved to another schema"
        # One is the harness's own, which gives the identity.
        if sum(tag == "ALTER TABLE" for tag, _ in log) > table.has_full_identity:
            return "altered"
        return "never altered"


def differences(source: Iterable[dict[str, Any]], held: PeerTable | None, table: SourceTable) -> str:
    """How the rows of the events differ from the source's, as multisets of comparable rows; "" if they do not."""
    kinds = table.kinds
    there = Counter(tuple(row[name] for name in kinds) for row in source)
    held = held or PeerTable()
    fields = held.fields
    here = Counter(
        tuple(of_event(kind, fields.get(name, {}), row.get(name)) for name, kind in kinds.items())
        for row in held.rows()
    )
    if there == here:
        return ""
    lacking, extra = there - here, here - there
    named = [f"{of} {_shortened(list(kinds), rows)}" for of, rows in (("source", lacking), ("events", extra)) if rows]
    lost = [name for name in kinds if name not in fields]
    return "; ".join(
        [
            f"{lacking.total()} of {there.total()} rows are not there, {extra.total()} of {here.total()} are too many",
            *([f"no event had {', '.join(lost)}"] if lost and held.events else []),
            *([f"{held.missed} events found no row"] if held.missed else []),
            *named,
        ]
    )


def _shortened(names: list[str], rows: Counter[tuple[Any, ...]]) -> str:
    row = min(rows, key=repr)
    return str(dict(zip(names, row, strict=True)))[:200]


def _source_rows(connection: psycopg.Connection[Any], table: SourceTable) -> list[dict[str, Any]]:
    columns = sql.SQL(", ").join(map(sql.Identifier, table.kinds))
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, table.reference)
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return [
            {name: of_text(kind, text) for (name, kind), text in zip(table.kinds.items(), row, strict=True)}
            for row in copy.rows()
        ]


def _published(connection: psycopg.Connection[Any]) -> dict[str, SourceTable]:
    types = connection.execute(
        "SELECT oid::bigint, CASE WHEN typtype = 'd' THEN typbasetype::bigint ELSE 0 END, typname::text, "
        "CASE WHEN typsubscript = 'array_subscript_handler'::regproc THEN typelem::bigint ELSE 0 END FROM pg_type"
    )
    by_oid = {oid: (base, name, element) for oid, base, name, element in types}

    def kind(oid: int) -> str:
        base, name, element = by_oid[oid]
        if base:
            return kind(base)
        return f"_{kind(element)}" if element else name

    tables = {}
    for oid, schema, name, is_root, identity, columns, of_types in connection.execute(_PUBLISHED.encode()):
        reference = sql.SQL("" if is_root else "ONLY ") + sql.Identifier(schema, name)
        kinds = dict(zip(columns, map(kind, of_types), strict=True))
        tables[f"{schema}.{name}"] = SourceTable(oid, f"{schema}.{name}", is_root, identity == "f", kinds, reference)
    return tables
