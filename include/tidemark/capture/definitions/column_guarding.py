"""Decides which columns of a RELATION message are masked or left out, despite renames (`schema.guards`).

    the drain begins ──► the masks in the ledger ──► the first reading of all masked tables, recorded with its masks
    RELATION of transaction X   the first reading contains X: before = the ledger's reading, after = the first one
                                it does not:                  before = the first reading,   after = one that contains X
    the heartbeat is registered ──► the ledger keeps the first reading: it is older than every change that is not staged

Changes of a table are not staged in two cases (`ChangesWithheld`), and the table needs a backfill: its own entry of the
file names a column that the table does not have, or the table was dropped since.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.config import PipelineConfig, TableRule
from tidemark.errors import Move, ShapeUnsettled
from tidemark.findings import Finding, listed
from tidemark.ledger.captured import guarded_columns as ledger_guards
from tidemark.ledger.captured.guarded_columns import GuardedColumns
from tidemark.ledger.connection import Ledger
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema import guards
from tidemark.schema.guards import Guard, Guards, HiddenColumns, Rows
from tidemark.source.catalogue import column_names
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.catalogue.column_names import ColumnNames
from tidemark.source.catalogue.source_tables import Matching
from tidemark.source.wal.slot import Server

# How long a transaction that is in the stream may take until it is visible; it waits for synchronous standbys only.
VISIBLE_WITHIN_S: Final = 10.0


class ChangesWithheld(Exception):
    """None of the table's changes may be staged, for the given reason. Internal: the drain passes over the table."""


@dataclass(frozen=True, slots=True)
class LedgerGuards:
    """The masked and left-out columns of one pipeline in the ledger, for the server that is the source now."""

    config: PipelineConfig
    ledger: Ledger
    server: Server

    def stored(self) -> dict[int, GuardedColumns]:
        return ledger_guards.all_of(self.ledger, self.server.system_identifier)

    def bind(self, oid: int, table: TableName, rows: Rows, before: Guards) -> dict[int, Guard]:
        """Assign the masks of the file to the columns of a reading, and record them. A table that the file does not
        name keeps its masks."""
        rule = self.config.rule(table)
        if rule is None or guards.bind(before, str(table), rows, rule) == before:
            return dict(before)
        return self._change(oid, table, lambda now: guards.bind(now, str(table), rows, rule))

    def add(self, oid: int, table: TableName, guards_added: dict[int, Guard]) -> dict[int, Guard]:
        return self._change(oid, table, lambda now: {**guards_added, **now})

    def keep_columns(self, oid: int, table: TableName, reading: ColumnNames, bound: Guards) -> None:
        _, rows = reading.tables[oid]
        guarded = GuardedColumns(str(table), self.server.timeline, reading.snapshot, rows, dict(bound))
        self._change(oid, table, dict)
        ledger_guards.keep_columns(self.ledger, self.server.system_identifier, oid, guarded)

    def _change(self, oid: int, table: TableName, how: Callable[[Guards], dict[int, Guard]]) -> dict[int, Guard]:
        return ledger_guards.change(
            self.ledger,
            self.server.system_identifier,
            oid,
            str(table),
            self.server.timeline,
            how,
        )

    def applied(self, captured: CapturedTable) -> CapturedTable:
        """A table that nobody can alter meanwhile, with its rule in the names of its guarded columns. Raises
        ChangesWithheld."""
        oid, table = captured.relation_oid, captured.name
        rows = {column.attnum: (column.name, column.xmin) for column in captured.columns}
        stored = self.stored().get(oid)
        bound = self.bind(oid, table, rows, {} if stored is None else stored.guards)
        require_fit(self.config, table, (), rows, bound)
        return guarded_by(captured, bound)


def guarded_by(table: CapturedTable, bound: Guards) -> CapturedTable:
    """The table with its rule in the column names that the catalogue has now."""
    columns = [(column.attnum, column.name) for column in table.columns]
    return dataclasses.replace(table, rule=_hiding(table.rule, guards.in_names(table.rule, columns, bound)))


def _hiding(rule: TableRule, hidden: HiddenColumns) -> TableRule:
    return dataclasses.replace(rule, leave_out=hidden.leave_out, mask=hidden.mask)


def require_fit(config: PipelineConfig, table: TableName, names: tuple[str, ...], rows: Rows, bound: Guards) -> None:
    """Raises ChangesWithheld if the table's own entry masks or leaves out a column that the table does not have."""
    missing = guards.unfit(config.guarded_by_name(table), str(table), names, rows, bound)
    if missing:
        raise ChangesWithheld(f"the file masks or leaves out {', '.join(missing)}, which it does not have")


def guard_findings(
    config: PipelineConfig, stored: Mapping[int, GuardedColumns], now: ColumnNames
) -> tuple[set[tuple[TableName, str]], list[Finding]]:
    """Preflight's findings for guarded columns that have another name now: the entries of the file that are followed
    under that name, and a finding per table. Writes nothing."""
    followed: set[tuple[TableName, str]] = set()
    findings = []
    for oid, (table, rows) in now.tables.items():
        rule = config.rule(table)
        if rule is None or oid not in stored:
            continue
        heirs = guards.inherited(str(table), rows, guards.bind(stored[oid].guards, str(table), rows, rule))
        followed |= {(table, guard.column) for guard in heirs.values() if guard.table == str(table)}
        if heirs:
            renamed = listed(f"{name} (was {guard.column} of {guard.table})" for name, guard in sorted(heirs.items()))
            findings.append(
                Finding.of_tables(
                    "columns",
                    [table],
                    f"Masked or left-out columns of {table} were renamed; masked ones are staged as NULL, and the "
                    f"others stay left out: {renamed}",
                    "Write their new names into the file, under mask or leave_out; the mask `clear` captures a column "
                    "as it is",
                    bars="nothing",
                    move=Move.FIX_CONFIG,
                )
            )
    return followed, findings


def record_first_columns(book: LedgerGuards, source: psycopg.Connection[Any], matched: Matching) -> None:
    """Record the columns of tables with masks before their changes can be in the stream. Later renames are then
    detected."""
    stored = book.stored()
    new = [t.relation.oid for t in matched.tables if guards.guards(t.rule) and t.relation.oid not in stored]
    now = column_names.read(source, new)
    for oid, (table, rows) in now.tables.items():
        book.bind(oid, table, rows, {})
        book.keep_columns(oid, table, now, {})


class ColumnGuards:
    """The masks of one drain. `captured` are the tables that the pipeline file names now, by OID."""

    def __init__(self, book: LedgerGuards, source: psycopg.Connection[Any], captured: dict[int, TableName]) -> None:
        self._book = book
        self._source = source
        # The guards are read first: a guard was made from a reading of the columns, which is then older than this one.
        self._stored = book.stored()
        named = {oid for oid, table in captured.items() if (r := book.config.rule(table)) and guards.guards(r)}
        self._first = column_names.read(source, named | set(self._stored))
        self._latest = self._first
        self._known: dict[int, dict[int, Guard]] = {oid: row.guards for oid, row in self._stored.items()}
        for oid, (table, rows) in self._first.tables.items():
            self._known[oid] = book.bind(oid, table, rows, self._known.get(oid, {}))

    def applied(self, table: CapturedTable) -> CapturedTable:
        """The table with its rule in the column names that the catalogue has now."""
        return guarded_by(table, self._known.get(table.relation_oid, {}))

    def place(self, relation: RelationMessage, rule: TableRule) -> TableRule:
        """The rule in the column names of a RELATION message. Raises ChangesWithheld or ShapeUnsettled."""
        oid, table = relation.relation_oid, relation.table
        if not guards.guards(rule) and not self._known.get(oid):
            return rule
        assert relation.xid is not None
        before, after = self._around(oid, relation.xid)
        if after is None:
            raise ChangesWithheld("it was dropped since, and which of its columns were masked cannot be told any more")
        called, rows = after
        bound = self._book.bind(oid, called, rows, self._known.get(oid, {}))
        names = tuple(column.name for column in relation.columns)
        resolved = guards.resolve(rule, str(table), names, before, rows, bound)
        if resolved.new_guards:
            bound = self._book.add(oid, called, resolved.new_guards)
        self._known[oid] = bound
        require_fit(self._book.config, table, names, rows, bound)
        return _hiding(rule, resolved)

    def _around(self, oid: int, xid: int) -> tuple[Rows | None, tuple[TableName, Rows] | None]:
        first = self._first.tables.get(oid)
        if self._first.snapshot.sees(xid):
            stored = self._stored.get(oid)
            is_before = (
                stored is not None
                and stored.snapshot is not None
                and stored.timeline == self._book.server.timeline
                and not stored.snapshot.sees(xid)
            )
            if first is None and oid not in self._stored:
                # A name of the file that came with the table since: there is nothing to compare with.
                return None, self._columns_after(oid, xid).tables.get(oid)
            return (stored.rows if stored is not None and is_before else None), first
        return (None if first is None else first[1]), self._columns_after(oid, xid).tables.get(oid)

    def _columns_after(self, oid: int, xid: int) -> ColumnNames:
        """A reading of the columns that contains the transaction. The transaction is in the stream, so it is committed.
        It becomes visible once no synchronous standby delays it."""
        ends_at = time.monotonic() + VISIBLE_WITHIN_S
        while oid not in self._latest.tables or not self._latest.snapshot.sees(xid):
            self._latest = column_names.read(self._source, {oid, *self._first.tables, *self._known})
            if self._latest.snapshot.sees(xid):
                break
            if time.monotonic() >= ends_at:
                raise ShapeUnsettled(seconds=VISIBLE_WITHIN_S)
            time.sleep(0.05)
        return self._latest

    def heartbeat_registered(self) -> None:
        """Called when every change before the first reading is staged: the ledger keeps that reading for the next
        drain."""
        for oid, (table, _) in self._first.tables.items():
            loaded = self._stored[oid].guards if oid in self._stored else {}
            self._book.keep_columns(oid, table, self._first, loaded)
