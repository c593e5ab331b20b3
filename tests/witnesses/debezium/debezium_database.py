"""A database of the witnesses that Debezium's engine reads, in the place of a `CapturedDatabase`.

    file ──► source ──its own slot and publication──► engine ──events──► rows by key ──► compared at the file's end

Compared are the published columns of each table that the source still has. The harness writes every DDL command into
an unlogged table, which no publication has, so that a difference can be put down to what was done to its table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql

from tests.witnesses.captured_database import FULL_IDENTITY, CapturedDatabase, TableVerdict, error_of
from tests.witnesses.debezium.change_events import Field, PeerTable
from tests.witnesses.debezium.comparable_values import of_event, of_text
from tests.witnesses.debezium.engine import SLOT, Engine
from tidemark.names import TableName

Row = tuple[Any, ...]
MARKERS: Final = "public.witness_marker"
_DDL_LOG: Final = """
CREATE UNLOGGED TABLE public.witness_ddl (tag text, id oid, name text, is_partition bool);
CREATE FUNCTION public.note_ddl() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_EVENT = 'sql_drop' THEN
        INSERT INTO public.witness_ddl SELECT 'DROP', objid, schema_name || '.' || object_name
          FROM pg_event_trigger_dropped_objects() WHERE object_type = 'table' AND NOT is_temporary;
    ELSE  -- ALTER TABLE of a parent alters its children, too.
        WITH RECURSIVE command (tag, id) AS (
            SELECT command_tag, objid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass
            UNION SELECT tag, i.inhrelid FROM command JOIN pg_inherits i ON i.inhparent = id WHERE tag = 'ALTER TABLE'
        )
        INSERT INTO public.witness_ddl SELECT tag, id, n.nspname || '.' || c.relname, c.relispartition
          FROM command JOIN pg_class c ON c.oid = id JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p', 'c');
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
# What keeps the engine from starting, where no column needs it (debezium/debezium#7929, mended in 3.7.0).
_DROP_DOMAINS: Final = """
DO $$ DECLARE one record;
BEGIN
    FOR one IN SELECT d.oid::regtype AS name FROM pg_type d JOIN pg_type b ON b.oid = d.typbasetype
                WHERE d.typtype = 'd' AND b.typtype = 'e'
                  AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.atttypid IN (d.oid, d.typarray)) LOOP
        EXECUTE format('DROP DOMAIN %s', one.name);
    END LOOP;
END $$
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
        self.engine.clear_the_way = lambda: self.environment.execute(_DROP_DOMAINS)
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
        return self.run()

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
        try:
            wrong = differences(_source_rows(connection, table), held, table)
        except Exception as error:
            yield TableVerdict(file, table.name, "error", f"not compared: {type(error).__name__}: {error}")
            return
        if not wrong:
            yield TableVerdict(file, table.name, "equal")
            return
        done = self._done_to(connection, table, held)
        yield TableVerdict(file, table.name, "differs", f"{done}: {wrong}")

    def _done_to(self, connection: psycopg.Connection[Any], table: SourceTable, held: PeerTable | None) -> str:
        """What the DDL log has of a table that differs, the most far-reaching first."""
        of_name = connection.execute("SELECT DISTINCT id FROM public.witness_ddl WHERE name = %s", (table.name,))
        others = {oid for (oid,) in of_name} - {table.oid}
        of_table = "SELECT tag, name, is_partition FROM public.witness_ddl WHERE id = %s"
        log = connection.execute(of_table, (table.oid,)).fetchall()
        of_types = connection.execute(
            "SELECT FROM public.witness_ddl JOIN pg_type ON typrelid = id JOIN pg_attribute ON atttypid = pg_type.oid "
            "WHERE tag = 'ALTER TYPE' AND attrelid = %s",
            (table.oid,),
        )
        if held is None:
            if table.is_root or any(is_partition for *_, is_partition in log):
                return f"no event of it came, and it {'is partitioned' if table.is_root else 'was a partition'}"
            return "no event of it came"
        if others:
            return "another table had its name before"
        if any(name != table.name for _, name, _ in log):
            return "renamed, or moved to another schema"
        if table.is_root:
            return "partitioned"
        # One is the harness's own, which gives the identity.
        if sum(tag == "ALTER TABLE" for tag, *_ in log) > table.has_full_identity:
            return "altered"
        return "a type of it altered" if of_types.rowcount else "never altered"


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
            *([f"the key is {', '.join(held.key)}"] if held.key else []),
            f"events {dict(held.operations)}",
            *_values(kinds, fields, lacking, extra),
            *named,
        ]
    )


def _values(
    kinds: Mapping[str, str], fields: Mapping[str, Field], lacking: Counter[Row], extra: Counter[Row]
) -> Iterator[str]:
    """The columns whose values differ, with one value of each side, if all other columns are equal."""
    if lacking.total() != extra.total():
        return
    differ = [at for at in range(len(kinds)) if _projected(lacking, [at]) != _projected(extra, [at])]
    others = [at for at in range(len(kinds)) if at not in differ]
    if _projected(lacking, others) != _projected(extra, others):
        return
    names = list(kinds)
    for at in differ:
        ours, theirs = _projected(lacking, [at]), _projected(extra, [at])
        field = fields.get(names[at], {})
        kind = f"{field.get('type')} {field.get('name') or ''}".strip() if field else "not in an event"
        source, events = (str(min(rows, key=repr)[0])[:60] for rows in (ours - theirs, theirs - ours))
        yield f"only values of {names[at]} ({kinds[names[at]]}, {kind}): source {source}, events {events}"


def _projected(rows: Counter[Row], places: Iterable[int]) -> Counter[Row]:
    of: Counter[Row] = Counter()
    for row, number in rows.items():
        of[tuple(row[at] for at in places)] += number
    return of


def _shortened(names: list[str], rows: Counter[Row]) -> str:
    row = min(rows, key=repr)
    return str(dict(zip(names, row, strict=True)))[:400]


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
        "SELECT t.oid::bigint, CASE WHEN t.typtype = 'd' THEN t.typbasetype::bigint ELSE 0 END, t.typname::text, "
        "coalesce(e.oid::bigint, 0) FROM pg_type t LEFT JOIN pg_type e ON e.typarray = t.oid"
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
