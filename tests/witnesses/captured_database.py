"""A captured database of the witnesses: runs that hand their errors back, and a verdict on each table.

A table without a key gets REPLICA IDENTITY FULL as soon as it is created, since PostgreSQL refuses UPDATE and DELETE of
a published table without an identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.support import judge
from tests.support.capture import Environment
from tidemark.errors import TidemarkError
from tidemark.source import definition_trigger

_FULL_IDENTITY: Final = """
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
    """What became of one table by the end of a file: "equal"; "repaired" by a backfill after a mark; still
    "marked"; "parked"; "differs"; "error"."""

    file: str
    table: str
    outcome: str
    reason: str = ""


def error_of(*steps: Callable[[], object]) -> str | None:
    """Take the steps, up to the first that fails: why it failed, None where none did."""
    try:
        for step in steps:
            step()
    except TidemarkError as error:
        return f"{type(error).__name__}: {error}"
    return None


@dataclass
class CapturedDatabase:
    """`judged` has, by table, the state and the version of its history that the last verdict was on."""

    environment: Environment
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)

    def begin(self, *, has_trigger: bool) -> None:
        """Open the capture of an empty database, with the event trigger that tells definitions, or without it."""
        self.environment.execute(_FULL_IDENTITY, "CREATE TABLE public.witness_start (id int PRIMARY KEY)")
        self.environment.begin()
        if has_trigger:
            role = self.environment.one("SELECT current_user")
            self.environment.execute(definition_trigger.create_sql(self.environment.config, role))
        self.run()

    def judge(self, file: str, error: str | None) -> Iterator[TableVerdict]:
        """Run, backfill what is marked, and judge what the file changed; `error` is of a run while it was played."""
        if error := error or self.run():
            yield TableVerdict(file, "(the run)", "error", error)
            return
        verdicts = list(self._verdicts(file))
        marks = {verdict.table: verdict.reason for verdict in verdicts if verdict.outcome == "marked"}
        if marks and (error := self.repair()):
            yield TableVerdict(file, "(the backfill)", "error", error)
        for verdict in self._verdicts(file) if marks else ():
            if verdict.outcome == "equal" and verdict.table in marks:
                verdict = TableVerdict(file, verdict.table, "repaired", marks[verdict.table])
            verdicts = [*(v for v in verdicts if v.table != verdict.table), verdict]
        yield from verdicts

    def drain(self) -> str | None:
        self.environment.begin_run()
        return error_of(self.environment.drain)

    def run(self) -> str | None:
        return error_of(self.environment.run)

    def _verdicts(self, file: str) -> Iterator[TableVerdict]:
        """The tables that the file changed, or whose state it changed."""
        at_source = self._at_source()
        for table, row in judge.captured(self.environment).items():
            if (called := str(judge.called(self.environment, table))) not in at_source:
                continue
            state = judge.marked(row) or ""
            history = judge.read(self.environment, "history", table)
            version = "" if history is None else str(history.version)
            if self.judged.get(table) == (state, version):
                continue
            self.judged[table] = state, version
            if state:
                yield TableVerdict(file, called, "parked" if row.life.is_parked else "marked", state)
                continue
            wrongs = judge.current_equals_source(self.environment, table)
            wrongs += judge.history_leads_to_current(self.environment, table)
            yield TableVerdict(file, called, "differs" if wrongs else "equal", "; ".join(wrongs)[:1000])

    def _at_source(self) -> set[str]:
        """Those with a column at least: of the others there is nothing to compare."""
        rows = self.environment.sql("SELECT schemaname, tablename FROM pg_publication_tables WHERE attnames <> '{}'")
        return {f"{schema}.{name}" for schema, name in rows}

    def repair(self) -> str | None:
        """Backfill what is marked; why that failed, None where it did not. A table that is built anew can be read from
        the next run on."""
        return self.run() or error_of(self.environment.backfill) or self.run()
