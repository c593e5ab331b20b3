"""Assigns each relation of the source a table id by its OID, so that a renamed table keeps its Delta tables (R11).

    RELATION message, or a catalogue reading ──► OID ──recorded──────► its id
                                                  └─not recorded──► `schema.table`, or the next place of that name

    DROP TABLE, CREATE TABLE    another OID: the next place of the name, `schema.table~2`; the old Delta tables stay
    RENAME TABLE, SET SCHEMA    the same OID, the same id; also if two tables swap their names
    another shape               the same OID, the next place from a position on (`capture.definitions.successor_shapes`)

An id belongs to the relation as a whole, so it is written at once, before any batch is registered. A drain that runs
again reads the id that the previous one chose. The rules of the pipeline file apply by the name at the source: for a
change, by the name at the time of the change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import psycopg

from tidemark.config import PipelineConfig
from tidemark.formats import layout
from tidemark.ledger.captured import relation_ids, successors
from tidemark.ledger.captured.relation_ids import RelationRecord
from tidemark.ledger.connection import Ledger
from tidemark.names import TableName
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.catalogue.source_tables import SourceTable
from tidemark.storage.store import Store


class TableIds:
    """The ids of one pipeline's tables on one server. Without `records` nothing is written to the ledger."""

    def __init__(self, config: PipelineConfig, ledger: Ledger, system_identifier: str, *, records: bool = True) -> None:
        self._config = config
        self._ledger = ledger
        self._system_identifier = system_identifier
        self._records = records
        self._folders: dict[str, set[str]] = {}
        self.read_again()

    def read_again(self) -> None:
        """Read the relations from the ledger again. A drain may have given a relation another id since; it cannot
        while the caller holds the lease `slot`."""
        self._relations = relation_ids.all_of(self._ledger, self._system_identifier)
        self._followed = {shape.before: shape.table for shape in successors.all_of(self._ledger).values()}

    def record_names(self, source: psycopg.Connection[Any]) -> None:
        """Read the present names of the recorded relations at the source. Record new names and dropped relations."""
        called = catalog.current_names(source, self._relations)
        altered, gone = {}, []
        for oid, relation in self._relations.items():
            now = called.names.get(oid)
            if now is None or relation.is_another(now[1]):
                if relation.gone_lsn is None:
                    gone.append(oid)
            elif (relation.name, relation.born, relation.gone_lsn) != (*now, None):
                altered[oid] = now
        if self._records and (altered or gone):
            relation_ids.note(self._ledger, self._system_identifier, altered, gone, called.lsn)
            self._relations = relation_ids.all_of(self._ledger, self._system_identifier)

    def recorded_id(self, oid: int) -> TableName | None:
        """The id of a recorded relation by its OID, None if it is not recorded."""
        relation = self._relations.get(oid)
        return None if relation is None else relation.table

    def id_of(self, oid: int, called: TableName, born: int | None = None) -> TableName:
        """The id of a relation. A relation without an id is assigned one."""
        relation = self._relations.get(oid)
        if relation is None or relation.is_another(born):
            relation = self._assigned(oid, called, born)
            self._relations[oid] = relation
        return relation.table

    def begin_successor(self, oid: int) -> TableName:
        """Give a recorded relation another id from here on, and return it. The batch that contains the change records
        it in the ledger."""
        relation = self._relations[oid]

        def in_lake() -> Iterable[int]:
            return self._in_lake(relation.table.at_source)

        table = successors.reserve(self._ledger, relation.table, in_lake)
        self._followed[str(relation.table)] = str(table)
        self._relations[oid] = replace(relation, table=table)
        return table

    def id_for_readers(self, table: TableName) -> TableName:
        """The table that readers use for the relation with this id: the one before, until this one is complete."""
        known = successors.all_of(self._ledger)
        followed = {after: before for before, after in self._followed.items()}
        while str(table) in followed and str(table) not in known:  # assigned by this drain, in no batch yet
            table = TableName.parse(followed[str(table)])
        return TableName.parse(successors.beside(known, str(table)))

    def _assigned(self, oid: int, called: TableName, born: int | None) -> RelationRecord:
        def in_lake() -> Iterable[int]:
            return self._in_lake(called)

        if self._records:
            return relation_ids.assign(self._ledger, self._system_identifier, oid, called, born, in_lake)
        table = relation_ids.choose(self._ledger, self._system_identifier, called, in_lake)
        return RelationRecord(oid, table, called, born, None)

    def _in_lake(self, called: TableName) -> list[int]:
        """The places above the first for which the lake has a folder. A schema's folders are listed once, since a
        first run needs them for each of its tables. The ledger has those that are created meanwhile."""
        schema = called.path.rpartition("/")[0]
        if schema not in self._folders:
            store = Store(self._config.lake, self._config.lake_access)
            parents = {path(self._config.pipeline, called) for path in (layout.current_table, layout.history_table)}
            self._folders[schema] = {entry for parent in parents for entry in store.list(parent.rpartition("/")[0])}
        of_name = re.compile(rf"{re.escape(called.at_source.folder)}-p(\d+)")
        return [int(found[1]) for entry in self._folders[schema] if (found := of_name.fullmatch(entry))]

    def id_of_table(self, table: SourceTable) -> TableName:
        return self.id_of(table.relation.oid, table.table, table.relation.born)

    def with_ids(self, captured: Iterable[CapturedTable]) -> list[CapturedTable]:
        """The captured tables with their ids. A table that is neither published nor recorded is left out, because its
        kind may not be capturable."""
        return [
            table.kept_as(self.id_of(table.relation_oid, table.name, table.born))
            for table in captured
            if table.published or table.relation_oid in self._relations
        ]

    def relation_of(self, table: TableName) -> RelationRecord | None:
        """The relation that has this id. Of several, the one that exists; None if no relation has it."""
        of_table = [relation for relation in self._relations.values() if relation.table == table]
        return max(of_table, key=_most_present, default=None)

    def name_of(self, table: TableName) -> TableName:
        """The present or last name at the source of the table with this id."""
        relation = self.relation_of(table)
        return table.at_source if relation is None else relation.name

    def id_of_name(self, name: TableName) -> TableName:
        """The id of the table that has this name at the source now; the name itself if no such relation is recorded."""
        there = [relation for relation in self._relations.values() if relation.gone_lsn is None]
        return next((relation.table for relation in there if relation.name == name), name)

    def predecessors(self, name: TableName) -> list[TableName]:
        """The ids of dropped tables whose last name was this one."""
        return [r.table for r in self._relations.values() if r.gone_lsn is not None and r.name == name]

    def superseded(self, tables: Collection[str]) -> list[str]:
        """Those of these tables that get no more changes: another relation now has the name under which their rows
        came, or the relation continues as another table."""
        having: dict[TableName, set[int]] = {}
        of_table: dict[str, RelationRecord] = {}
        for relation in sorted(self._relations.values(), key=_most_present):
            of_table[str(relation.table)] = relation
            if relation.gone_lsn is None:
                having.setdefault(relation.name, set()).add(relation.oid)

        def is_replaced(relation: RelationRecord) -> bool:
            names = {relation.table.at_source, relation.table.at_source if relation.gone_lsn is None else relation.name}
            return any(having.get(name, set()) - {relation.oid} for name in names)

        return [t for t in tables if t in self._followed or (t in of_table and is_replaced(of_table[t]))]


def _most_present(relation: RelationRecord) -> tuple[bool, int]:
    """Of several relations of one id, the one that exists comes last."""
    return relation.gone_lsn is None, relation.oid
