"""A captured database of the witnesses: runs that hand their errors back, and a verdict on each table.

A table without a key gets REPLICA IDENTITY FULL as soon as it is created, since PostgreSQL refuses UPDATE and DELETE of
a published table without an identity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import psycopg
from psycopg import sql

from tests.support import judge
from tests.support.capture import Environment
from tidemark.errors import TidemarkError
from tidemark.ledger.captured import relation_ids
from tidemark.ledger.captured.tables import TableRow
from tidemark.names import TableName
from tidemark.source import event_trigger

FULL_IDENTITY: Final = """
CREATE FUNCTION public.give_identity() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE one record;
BEGIN
    FOR one IN SELECT c.oid::regclass AS name
                 FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
                WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
                  AND c.relreplident = 'd'
                  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', one.name);
    END LOOP;
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
CREATE EVENT TRIGGER give_identity ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION public.give_identity();
"""


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What became of one table by the end of a file: "equal"; "repaired" by a backfill after a mark; "dropped", with
    the history that leads to what it last had; still "marked"; "parked"; "differs"; "error"."""

    file: str
    table: str
    outcome: str
    reason: str = ""


def error_of(*steps: Callable[[], object]) -> str | None:
    """Take the steps, up to the first that fails: why it failed, None where none did. An error that is none of
    Tidemark's is a fault by itself."""
    try:
        for step in steps:
            step()
    except TidemarkError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        logging.getLogger(__name__).exception("not an error of Tidemark's own")
        return f"{type(error).__name__}, which is none of Tidemark's errors: {error}"
    return None


class JudgedTables(Protocol):
    """The lake as its judge reads it, by the tables' ids."""

    def version(self, table: str) -> str:
        """Another one after each merge of the table."""

    def wrongs(self, table: str) -> list[str]:
        """What differs from the source, or contradicts itself."""

    def wrongs_of_dropped(self, table: str) -> list[str]:
        """What contradicts itself in a table that the source has no more."""


@dataclass(frozen=True, slots=True)
class DeltaTables:
    """Delta tables as Spark wrote them."""

    environment: Environment

    def version(self, table: str) -> str:
        history = judge.read(self.environment, "history", table)
        return "" if history is None else str(history.version)

    def wrongs(self, table: str) -> list[str]:
        return [*judge.current_equals_source(self.environment, table), *self.wrongs_of_dropped(table)]

    def wrongs_of_dropped(self, table: str) -> list[str]:
        if judge.schema_of(self.environment, table) is None:
            return []
        return judge.history_leads_to_current(self.environment, table)


@dataclass
class CapturedDatabase:
    """`judged` has, by table, the state and the version of its history that the last verdict was on; `let_go` are the
    tables that the harness itself dropped."""

    environment: Environment
    tables: JudgedTables
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)
    let_go: set[str] = field(default_factory=set)

    def begin(self, published: str, *, has_trigger: bool) -> None:
        """Open the capture of an empty database with a publication of what is named there, such as FOR ALL TABLES, and
        with the event trigger that tells definitions, or without it."""
        self.environment.execute(
            FULL_IDENTITY,
            "CREATE TABLE public.witness_start (id int PRIMARY KEY)",
            f"CREATE PUBLICATION {self.environment.config.publication} {published} WITH (publish_via_partition_root)",
        )
        self.environment.create_slot()
        if has_trigger:
            role = self.environment.one("SELECT current_user")
            self.environment.execute(event_trigger.create_sql(self.environment.config, role))
        self.run()

    def judge(self, file_of: Callable[[TableName], str | None]) -> Iterator[TableVerdict]:
        """Backfill what is marked, and judge what changed since the last time, of tables that belong to a file."""
        verdicts = list(self._verdicts(file_of))
        marks = {verdict.table: verdict.reason for verdict in verdicts if verdict.outcome == "marked"}
        if marks and (error := self.repair()):
            yield TableVerdict(verdicts[0].file, "(the backfill)", "error", error)
        for verdict in self._verdicts(file_of) if marks else ():
            if verdict.outcome == "equal" and verdict.table in marks:
                verdict = TableVerdict(verdict.file, verdict.table, "repaired", marks[verdict.table])
            verdicts = [*(v for v in verdicts if v.table != verdict.table), verdict]
        yield from verdicts

    def look(self, file_of: Callable[[TableName], str | None]) -> Iterator[TableVerdict]:
        """Judge what changed since the last time, without a backfill. What is marked is left to `judge`."""
        judged = self.judged.copy()
        for verdict in self._verdicts(file_of):
            if verdict.outcome != "marked":
                yield verdict
        self.judged = {
            table: seen
            for table, seen in self.judged.items()
            if seen == judged.get(table) or not seen[0].startswith("needs backfill")
        }

    def drain(self) -> str | None:
        """A run up to its drain; why it failed, None where it did not."""
        self.environment.begin_run()
        return error_of(self.environment.preflight, self.environment.drain)

    def run(self) -> str | None:
        return error_of(self.environment.run)

    def repair(self) -> str | None:
        """Backfill what is marked; why that failed, None where it did not. A table that is built anew can be read from
        the next run on."""
        return self.run() or error_of(self.environment.backfill) or self.run()

    def end_prepared(self) -> None:
        """Roll back what a test prepared and left."""
        for (name,) in self.environment.query("SELECT gid FROM pg_catalog.pg_prepared_xacts"):
            self.environment.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)).as_string())

    def drop_schemas(self, schemas: Iterable[str]) -> None:
        """Drop what was judged, so that the next runs have less to look at."""
        self.end_prepared()
        named = set(schemas)
        self.let_go.update(t for t in self.environment.table_rows() if TableName.parse(t).schema in named)
        self.environment.execute(*(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE' for schema in sorted(named)))

    def schemas_of_files(self) -> list[str]:
        """The schemas that the files, or a suite for its files, created. That of the event trigger is none of them."""
        listed = self.environment.query("SELECT nspname FROM pg_catalog.pg_namespace WHERE oid >= 16384")
        return sorted({name for (name,) in listed} - {event_trigger.schema_of(self.environment.config)})

    def _verdicts(self, file_of: Callable[[TableName], str | None]) -> Iterator[TableVerdict]:
        """The tables that changed since the last verdict, or whose state did."""
        at_source = self._at_source()
        rows = self.environment.table_rows()
        with self.environment.ledger_connection() as ledger:
            names = relation_ids.names(ledger)
            system = str(self.environment.one("SELECT system_identifier FROM pg_control_system()"))
            relations = {str(one.table): oid for oid, one in relation_ids.all_of(ledger, system).items()}
        for table, row in rows.items():
            called = relation_ids.name_in(names, table)
            file = file_of(called)
            if table in self.let_go or file is None:
                continue
            is_there = row.life.is_captured and relations.get(table) in at_source
            state = (judge.marked(row) or "") if is_there else "dropped"
            seen = state, self.tables.version(table)
            if self.judged.get(table) == seen:
                continue
            self.judged[table] = seen
            if not is_there:
                yield from self._dropped(file, table, row)
            elif state:
                yield TableVerdict(file, str(called), "parked" if row.life.is_parked else "marked", state)
            else:
                wrongs = self._wrongs(self.tables.wrongs, table)
                yield TableVerdict(file, str(called), "differs" if wrongs else "equal", "; ".join(wrongs)[:1000])

    def _dropped(self, file: str, table: str, row: TableRow) -> Iterator[TableVerdict]:
        """What `history` of a table says that is not at the source any more, or has another shape by now."""
        if row.life.is_parked:
            yield TableVerdict(file, table, "parked", judge.marked(row) or "")
        elif self.tables.version(table):
            wrongs = self._wrongs(self.tables.wrongs_of_dropped, table)
            yield TableVerdict(file, table, "differs" if wrongs else "dropped", "; ".join(wrongs)[:1000])

    @staticmethod
    def _wrongs(judged: Callable[[str], list[str]], table: str) -> list[str]:
        """A judge that cannot compare says so of this table alone."""
        try:
            return judged(table)
        except (AssertionError, ValueError, psycopg.Error) as error:
            return [f"{type(error).__name__}: {error}"]

    def _at_source(self) -> set[int]:
        """The OIDs of those with a column at least: of the others there is nothing to compare."""
        rows = self.environment.sql(
            "SELECT c.oid::bigint FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname "
            "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.attnames <> '{}'"
        )
        return {oid for (oid,) in rows}
