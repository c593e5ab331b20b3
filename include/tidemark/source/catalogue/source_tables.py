"""Matches the tables of the pipeline file with the source's, and reads the facts that decide whether each can be
captured.

    tables of the file ──► matching() ──► which relations, with what identity, columns and leaves

It locks none of the tables. Source: PostgreSQL documentation, 29.1.1 "Replica Identity"; relcache.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from tidemark.config import PipelineConfig, TableRule
from tidemark.names import TableName
from tidemark.schema.table import Identity
from tidemark.source.catalogue.publication import may_become

KINDS: Final = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_IDENTITIES: Final[dict[str, Identity]] = {"d": "default", "f": "full", "i": "index", "n": "nothing"}


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the catalogue has it. `generated` is "" for an ordinary column, "s" for a stored generated one,
    "v" for a virtual one. `dimensions` are the declared dimensions of an array, 0 for another type."""

    name: str
    type: str
    generated: str
    dimensions: int = 0


@dataclass(frozen=True, slots=True)
class CatalogRelation:
    """A relation with its replica identity as PostgreSQL resolves it.

    - `key` has the columns of the identity's index in index order, under FULL those of the primary key. A deferrable
      primary key is no identity: then `key` is empty and `deferrable` true.
    - `key_made` is the OID of the constraint that `key` belongs to, or of its index if it has no constraint; 0 without
      a key.
    - `born` is the low 32 bits of the id of the transaction that created the relation; the catalogue has no more of it.
    - `unlogged` has no effect on a partitioned table: the leaves decide.
    """

    oid: int
    table: TableName
    kind: str
    identity: Identity
    key: tuple[str, ...]
    deferrable: bool
    key_made: int = 0
    born: int | None = None
    unlogged: bool = False

    @property
    def without_wal(self) -> str | None:
        """The reason why its changes are not in the write-ahead log, None if they are."""
        return "a foreign table" if self.kind == "f" else "unlogged" if self.unlogged else None

    @property
    def identified(self) -> bool:
        """Whether changes can identify the old row, so that PostgreSQL accepts UPDATE and DELETE once the table is
        published."""
        return self.identity == "full" or (self.identity != "nothing" and bool(self.key))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source that the file names, with the facts that decide whether it can be captured. It is
    `exact` if an entry names it without a pattern."""

    relation: CatalogRelation
    rule: TableRule
    exact: bool
    owned: bool
    owner: str
    readable: bool
    row_security: bool
    columns: tuple[SourceColumn, ...]
    leaves: tuple[CatalogRelation, ...]

    @property
    def table(self) -> TableName:
        return self.relation.table

    @property
    def partitioned(self) -> bool:
        return self.relation.kind == "p"

    @property
    def unlogged(self) -> bool:
        return self.relation.unlogged

    @property
    def leaves_without_wal(self) -> tuple[CatalogRelation, ...]:
        """The leaves whose changes are not in the write-ahead log. PostgreSQL publishes the root despite them, and
        accepts such a leaf under every publication."""
        return tuple(leaf for leaf in self.leaves if leaf.without_wal is not None)

    @property
    def captured_columns(self) -> tuple[SourceColumn, ...]:
        return tuple(column for column in self.columns if column.name not in self.rule.leave_out)

    def generated(self, kind: str) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.generated == kind)

    def breaks_updates(self, generated_published: bool) -> str | None:
        """The reason why PostgreSQL would refuse the application's own UPDATE and DELETE once this table is
        published, or None.

        A partitioned table's root counts too: leaves that are created later get its identity.
        """
        for relation in (self.relation, *self.leaves):
            if not relation.identified:
                return (
                    "it has no replica identity"
                    if relation is self.relation
                    else f"{relation.table} has no replica identity"
                )
            if relation.identity == "full" and self.generated("v"):
                return f"REPLICA IDENTITY FULL covers the virtual generated column {self.generated('v')[0]!r}"
            if relation.identity == "full" and self.generated("s") and not generated_published:
                return f"REPLICA IDENTITY FULL covers the unpublished generated column {self.generated('s')[0]!r}"
        return None


@dataclass(frozen=True, slots=True)
class Matching:
    """The result of matching the entries of `tables` with the source.

    - `refused` has each table that cannot be captured, whether an entry names it without a pattern, and the reason.
    - `unmatched` are the entries without a relation.
    - `names` are the names of the source's tables, for suggestions.
    """

    tables: tuple[SourceTable, ...]
    refused: tuple[tuple[TableName, bool, str], ...]
    unmatched: tuple[TableRule, ...]
    names: tuple[TableName, ...]

    def without(self, barred: Collection[TableName]) -> Matching:
        return replace(self, tables=tuple(table for table in self.tables if table.table not in barred))


def matching(
    connection: psycopg.Connection[Any],
    config: PipelineConfig,
    *,
    others: bool = True,
    relation: int | None = None,
) -> Matching:
    """Match the file's entries with the source's relations. It takes three statements for any number of tables, and
    a fourth one if some are partitioned.

    Without `others`, the result's `names` may lack tables that the file does not name, and a file without patterns
    reads only its own tables from the catalogue. With `relation`, an OID, only that relation is read.
    """
    candidates: dict[int, tuple[TableName, str]] = {}
    refused: list[tuple[TableName, bool, str]] = []
    names: list[TableName] = []
    matched: set[int] = set()
    rules: dict[int, tuple[TableRule, bool]] = {}
    only = None if others else config.only_names
    only_these = None if only is None else [table.name for table in only]
    query = _RELATIONS if only_these is None else f"{_RELATIONS} AND c.relname = ANY (%(names)s)"
    query = query if relation is None else f"{query} AND c.oid = %(relation)s::oid"
    about = {"names": only_these, "relation": relation}
    for oid, schema, name, kind, partition_of, system in connection.execute(query, about):
        table = TableName(schema, name)
        if kind in ("r", "p") and not partition_of and not system:
            names.append(table)
        entries = config.entries(table)
        rule = config.rule(table) if entries else None
        exact = any(entry.exact for entry in entries)
        if rule is None or (system and not exact):
            continue
        matched.update(map(id, entries))
        if system:
            refused.append((table, exact, "it belongs to PostgreSQL itself"))
        elif partition_of:
            refused.append((table, exact, f"it is a partition; name its root {partition_of}"))
        elif kind not in ("r", "p"):
            refused.append((table, exact, f"it is a {KINDS[kind]}, whose changes are not in the write-ahead log"))
        else:
            candidates[oid] = (table, kind)
            rules[oid] = (rule, exact)
    return Matching(
        tables=tuple(sorted(_details(connection, candidates, rules), key=lambda t: t.table)),
        refused=tuple(sorted(refused)),
        unmatched=tuple(entry for entry in config.tables if id(entry) not in matched),
        names=tuple(sorted(names)),
    )


def _details(
    connection: psycopg.Connection[Any],
    candidates: dict[int, tuple[TableName, str]],
    rules: dict[int, tuple[TableRule, bool]],
) -> Iterator[SourceTable]:
    if not candidates:
        return
    roots = [oid for oid, (_, kind) in candidates.items() if kind == "p"]
    leaves: dict[int, list[int]] = {root: [] for root in roots}
    if roots:
        for root, leaf in connection.execute(_LEAVES, (roots,)):
            leaves[root].append(leaf)
    relations: dict[int, CatalogRelation] = {}
    facts: dict[int, Any] = {}
    oids = [*candidates, *(leaf for group in leaves.values() for leaf in group)]
    identities = sql.SQL(_IDENTITY).format(may_become=may_become(connection, "c.relowner"))
    for row in connection.execute(identities, (oids,)):
        oid, schema, name, kind, identity, *keys, deferrable, born, unlogged = row[:12]
        resolved = _IDENTITIES[identity]
        key, key_made = keys[:2] if resolved == "index" else keys[2:]
        relations[oid] = CatalogRelation(
            oid=oid,
            table=TableName(schema, name),
            kind=kind,
            identity=resolved,
            key=tuple(key or ()),
            deferrable=deferrable,
            key_made=key_made if key else 0,
            born=born,
            unlogged=unlogged,
        )
        facts[oid] = row[12:]
    columns: dict[int, list[SourceColumn]] = {oid: [] for oid in candidates}
    for oid, *column in connection.execute(_COLUMNS, (list(candidates),)):
        columns[oid].append(SourceColumn(*column))
    for oid in candidates:
        if oid not in relations:  # dropped between two statements
            continue
        owned, owner, readable, row_security = facts[oid]
        rule, exact = rules[oid]
        yield SourceTable(
            relation=relations[oid],
            rule=rule,
            exact=exact,
            owned=owned,
            owner=owner,
            readable=readable,
            row_security=row_security,
            columns=tuple(columns[oid]),
            leaves=tuple(relations[leaf] for leaf in leaves.get(oid, ()) if leaf in relations),
        )


_RELATIONS: Final[LiteralString] = """
    SELECT c.oid, n.nspname, c.relname, c.relkind::text,
           CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::regclass::text END,
           n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast') OR c.relpersistence = 't'
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

# pg_partition_tree would lock all leaves.
_LEAVES: Final = """
    WITH RECURSIVE tree AS (
        SELECT oid AS root, oid AS relation FROM pg_class WHERE oid = ANY (%s::oid[])
        UNION ALL SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.relation
         AND NOT i.inhdetachpending
    )
    SELECT tree.root, tree.relation FROM tree JOIN pg_class c ON c.oid = tree.relation
     WHERE c.relkind <> 'p' AND tree.relation <> tree.root
"""

# The transaction that created a relation: of all rows that the catalogue has of it, only those of its system columns
# (tableoid is -6) are never written again.
#
# An index counts as replica identity only while it is valid and immediate:
# RelationGetIndexList() in PostgreSQL's relcache.c.
#
# REINDEX CONCURRENTLY gives an index another OID, and leaves the constraint's.
_IDENTITY: Final[LiteralString] = """
    SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relreplident::text, ident.key, ident.made,
           prim.key, prim.made, coalesce(prim.deferrable, false),
           (SELECT a.xmin::text::bigint FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = -6),
           c.relpersistence = 'u', pg_has_role(c.relowner, 'USAGE') OR {may_become}, pg_get_userbyid(c.relowner),
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN LATERAL (
           SELECT array_agg(a.attname::text ORDER BY k.n) AS key, max(coalesce(o.oid, i.indexrelid)) AS made
             FROM pg_index i LEFT JOIN pg_constraint o ON o.conindid = i.indexrelid AND o.contype IN ('p', 'u'),
                  unnest(i.indkey) WITH ORDINALITY AS k (attnum, n), pg_attribute a
            WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid AND k.n <= i.indnkeyatts
              AND a.attrelid = c.oid AND a.attnum = k.attnum) ident ON true
      LEFT JOIN LATERAL (
           SELECT array_agg(a.attname::text ORDER BY k.n) FILTER (WHERE i.indimmediate) AS key,
                  max(o.oid) AS made, bool_or(NOT i.indimmediate) AS deferrable
             FROM pg_index i JOIN pg_constraint o ON o.conindid = i.indexrelid AND o.contype = 'p',
                  unnest(i.indkey) WITH ORDINALITY AS k (attnum, n), pg_attribute a
            WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND k.n <= i.indnkeyatts
              AND a.attrelid = c.oid AND a.attnum = k.attnum) prim ON true
     WHERE c.oid = ANY (%s::oid[])
"""

_COLUMNS: Final = """
    SELECT attrelid, attname, format_type(atttypid, atttypmod), attgenerated::text, attndims FROM pg_attribute
     WHERE attrelid = ANY (%s::oid[]) AND attnum > 0 AND NOT attisdropped ORDER BY attrelid, attnum
"""
