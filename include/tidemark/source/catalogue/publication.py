"""Reads and changes the publication, matches its tables with the file's, and reads the facts of a table's join.

    tables of the file ──► matching() ──► which relations, with what identity
                                │
    no publication ─ create() ─►│◄─ add(), drop() ─ publication that Tidemark manages

R9: only creating or changing the publication takes more than a SELECT's lock (SHARE UPDATE EXCLUSIVE on the tables),
with a `lock_timeout`; a replica identity is never changed. A table whose own application could no longer update it,
once published without an identity, is not added because a pattern matched it: see `SourceTable.breaks_updates`.
Source: PostgreSQL documentation, "CREATE PUBLICATION", "ALTER PUBLICATION", 29.1.1 "Replica Identity".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from tidemark.config import PipelineConfig, TableRule
from tidemark.errors import SourceLocked
from tidemark.names import TableName
from tidemark.schema.table import Identity
from tidemark.wording import duration

OPERATIONS: Final = ("insert", "update", "delete", "truncate")
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
    """`generated` is "" for an ordinary column, "s" for a stored generated one, "v" for a virtual one. `dimensions` are
    those that an array was declared with, 0 of another type."""

    name: str
    type: str
    generated: str
    dimensions: int = 0


@dataclass(frozen=True, slots=True)
class CatalogRelation:
    """A relation with its replica identity as PostgreSQL resolves it. `unlogged` has no effect on a partitioned table:
    that of each leaf decides.

    `key` holds the columns of the identity's index in index order; under FULL those of the primary key. A deferrable
    primary key is no identity: then `key` is empty and `deferrable` true. `key_made` is the OID of the constraint that
    `key` belongs to, or of its index if it has no constraint; 0 without a key. `born` is the transaction that made the
    relation, by the 32 bits that the catalogue has of it.
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
        """What keeps its changes out of the write-ahead log, None if nothing does."""
        return "a foreign table" if self.kind == "f" else "unlogged" if self.unlogged else None

    @property
    def identified(self) -> bool:
        """Whether an old row can be named, so that PostgreSQL accepts UPDATE and DELETE once the table is published."""
        return self.identity == "full" or (self.identity != "nothing" and bool(self.key))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source that the file names, with what decides whether it can be captured.
    `exact`: named, not by pattern."""

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
        """PostgreSQL publishes the root all the same, and accepts such a leaf under every publication."""
        return tuple(leaf for leaf in self.leaves if leaf.without_wal is not None)

    @property
    def captured_columns(self) -> tuple[SourceColumn, ...]:
        return tuple(column for column in self.columns if column.name not in self.rule.leave_out)

    def generated(self, kind: str) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.generated == kind)

    def breaks_updates(self, generated_published: bool) -> str | None:
        """Why PostgreSQL would refuse the application's own UPDATE and DELETE once this table is published, or None.

        A partitioned table's root counts too: leaves that are created later are as it is.
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
    """What the entries of `tables` find at the source; `refused` maps what cannot be captured to the reason."""

    tables: tuple[SourceTable, ...]
    refused: tuple[tuple[TableName, bool, str], ...]
    unmatched: tuple[TableRule, ...]
    names: tuple[TableName, ...]

    def without(self, barred: Collection[TableName]) -> Matching:
        return replace(self, tables=tuple(table for table in self.tables if table.table not in barred))


@dataclass(frozen=True, slots=True)
class Member:
    """A table as the publication lists it; `columns` and `row_filter` are None if everything is published."""

    table: TableName
    columns: tuple[str, ...] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class Publication:
    """`direct` are the tables added one by one; `covered` is what a subscriber sees,
    schemas and FOR ALL TABLES included."""

    name: str
    owner: str
    owned: bool
    all_tables: bool
    schemas: tuple[str, ...]
    operations: frozenset[str]
    via_root: bool
    generated_columns: bool
    direct: tuple[Member, ...]
    covered: frozenset[TableName]


# --- reading ----------------------------------------------------------------------------------------------------------


def matching(
    connection: psycopg.Connection[Any],
    config: PipelineConfig,
    *,
    others: bool = True,
    relation: int | None = None,
) -> Matching:
    """Look up what the file's entries name. Three statements whatever the number of tables, and a fourth where some are
    partitioned.

    Without `others` the result's `names` need not hold what the file does not name, and where it has no pattern, no
    more of the catalogue is read than its tables. With `relation`, an OID, it is of that one alone.
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

# pg_partition_tree would lock all of them.
_LEAVES: Final = """
    WITH RECURSIVE tree AS (
        SELECT oid AS root, oid AS relation FROM pg_class WHERE oid = ANY (%s::oid[])
        UNION ALL SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.relation
         AND NOT i.inhdetachpending
    )
    SELECT tree.root, tree.relation FROM tree JOIN pg_class c ON c.oid = tree.relation
     WHERE c.relkind <> 'p' AND tree.relation <> tree.root
"""

# Who made a relation: of all its rows in the catalogue, those of its system columns (tableoid is -6) are never written
# again.
#
# An index counts as replica identity only while it is valid and immediate:
# RelationGetIndexList() in PostgreSQL's relcache.c.
#
# REINDEX CONCURRENTLY gives an index another OID, and leaves that of its constraint.
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


def read(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    """The publication as it is now, None if there is none of this name."""
    generated = "p.pubgencols = 's'" if connection.info.server_version >= 180000 else "false"
    becomes = may_become(connection, "p.pubowner").as_string(None)
    row = connection.execute(
        f"SELECT p.oid, pg_get_userbyid(p.pubowner), pg_has_role(p.pubowner, 'USAGE') OR {becomes}, p.puballtables,"
        f" p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, {generated},"
        f" array(SELECT n.nspname::text FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid"
        f" WHERE s.pnpubid = p.oid ORDER BY 1)"
        f" FROM pg_publication p WHERE p.pubname = %s".encode(),
        (name,),
    ).fetchone()
    if row is None:
        return None
    oid, owner, owned, all_tables, *operations, via_root, generated_columns, schemas = row
    covered = connection.execute(_COVERED, {"publication": name}).fetchall()
    members = connection.execute(_MEMBERS, (oid,)).fetchall()
    return Publication(
        name=name,
        owner=owner,
        owned=owned,
        all_tables=all_tables,
        schemas=tuple(schemas),
        operations=frozenset(name for name, published in zip(OPERATIONS, operations, strict=True) if published),
        via_root=via_root,
        generated_columns=generated_columns,
        direct=tuple(
            Member(TableName(schema, table), None if columns is None else tuple(columns), row_filter)
            for schema, table, columns, row_filter in members
        ),
        covered=frozenset(TableName(schema, table) for schema, table in covered),
    )


# As pg_publication_tables has them, which cannot be used: it locks every table that it lists, so whoever holds one in
# ACCESS EXCLUSIVE MODE would keep the pipeline waiting. Partitions are left out: none of them is captured by itself.
PUBLISHED: Final = """
    SELECT c.oid AS relation, n.nspname, c.relname, p.oid AS publication, p.puballtables, s.oid AS by_schema,
           r.oid AS by_name, r.prattrs, r.prqual
      FROM pg_publication p CROSS JOIN pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
      LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
     WHERE p.pubname = %(publication)s AND NOT c.relispartition AND c.relpersistence = 'p' AND c.oid >= 16384
       AND (c.relkind = 'r' OR c.relkind = 'p' AND p.pubviaroot)
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
       AND (p.puballtables OR r.oid IS NOT NULL OR s.oid IS NOT NULL)
"""
_COVERED: Final = f"SELECT nspname, relname FROM ({PUBLISHED}) published"

_MEMBERS: Final = """
    SELECT n.nspname, c.relname,
           CASE WHEN r.prattrs IS NOT NULL THEN array(
                SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[]) ORDER BY a.attnum) END,
           pg_get_expr(r.prqual, r.prrelid)
      FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE r.prpubid = %s ORDER BY 1, 2
"""


# --- changing ---------------------------------------------------------------------------------------------------------


def create_statement(name: str, tables: Sequence[TableName], *, server_version: int, generated: bool) -> sql.Composed:
    """CREATE PUBLICATION with everything that Tidemark relies on; without tables it is empty.

    `generated` publishes stored generated columns (PostgreSQL 18 on): without them, the application's UPDATE of a table
    under REPLICA IDENTITY FULL fails.
    """
    options = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
    if generated and server_version >= 180000:
        options += ", publish_generated_columns = stored"
    for_tables = sql.SQL("FOR TABLE {} ").format(_table_list(tables)) if tables else sql.SQL("")
    return sql.SQL("CREATE PUBLICATION {} {}WITH ({})").format(sql.Identifier(name), for_tables, sql.SQL(options))


def add_statement(name: str, tables: Sequence[TableName]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _table_list(tables))


def drop_statement(name: str, tables: Sequence[TableName]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), _table_list(tables))


def change(
    connection: psycopg.Connection[Any],
    statements: Sequence[sql.Composed],
    *,
    lock_timeout_s: float,
    role: str | None = None,
) -> None:
    """Run statements on the publication in one transaction, as `role` where one is given: the rights of the tables'
    owner are this session's for these statements alone. Raises SourceLocked if a table's lock cannot be taken."""
    with lock_bounded(connection, lock_timeout_s, "the publication's tables"), connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(lock_timeout_s * 1000)}ms",))
        if role is not None:
            connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
        for statement in statements:
            connection.execute(statement)


def acting_role(
    connection: psycopg.Connection[Any], name: str, tables: Sequence[TableName], *, create: bool
) -> str | None:
    """The role to become for a statement on the publication and these tables.

    None if this session's role has the rights of their owners, or if no role that it may become has them all: then
    PostgreSQL's error names what is missing. To add a table, one role must own publication and table, or inherit from
    their owners. To create one, it also needs CREATE on the database. Never a superuser.
    """
    statement = sql.SQL(_ACTING_ROLE).format(may_become=may_become(connection, "r.oid"))
    row = connection.execute(
        statement,
        {
            "name": name,
            "schemas": [table.schema for table in tables],
            "tables": [table.name for table in tables],
            "create": create,
        },
    ).fetchone()
    return None if row is None or row[1] else str(row[0])


def may_become(connection: psycopg.Connection[Any], role: LiteralString) -> sql.Composed:
    """SQL: whether this session's role may SET ROLE to the one with that OID. Before 16 every member might."""
    right = "SET" if connection.info.server_version >= 160000 else "MEMBER"
    return sql.SQL("pg_has_role({}, {})").format(sql.SQL(role), sql.Literal(right))


_ACTING_ROLE: Final[LiteralString] = """
    SELECT r.rolname::text, r.rolname = current_user FROM pg_roles r
     WHERE (r.rolname = current_user OR NOT r.rolsuper AND {may_become})
       AND (NOT %(create)s OR has_database_privilege(r.oid, current_database(), 'CREATE'))
       AND NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %(name)s
                          AND NOT pg_has_role(r.oid, p.pubowner, 'USAGE'))
       AND NOT EXISTS (SELECT FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS t (schema, name)
                         JOIN pg_namespace n ON n.nspname = t.schema
                         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
                        WHERE NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
     ORDER BY r.rolname <> current_user, r.rolname
     LIMIT 1
"""


@contextmanager
def lock_bounded(connection: psycopg.Connection[Any], seconds: float, subject: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as taken:
        raise SourceLocked(what=subject, waited=duration(seconds), blockers=_locks_on_tables(connection)) from taken


def _table_list(tables: Sequence[TableName]) -> sql.Composed:
    # ONLY: a plain table's inheritance children are tables of their own and are named by themselves.
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(t.schema, t.name)) for t in tables)


def _locks_on_tables(connection: psycopg.Connection[Any]) -> str:
    rows = connection.execute(
        "SELECT DISTINCT l.pid, l.relation::regclass::text, l.mode FROM pg_locks l"
        " WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid() AND l.relation >= 16384"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',"
        " 'AccessExclusiveLock') ORDER BY 1, 2 LIMIT 5"
    ).fetchall()
    return "; ".join(f"process {pid} holds {mode} on {relation}" for pid, relation, mode in rows) or "nobody any more"


# --- joining ----------------------------------------------------------------------------------------------------------


def join_horizon(connection: psycopg.Connection[Any]) -> int:
    """The xid below which everything must have ended before a snapshot saw all that the stream will not bring.

    Taken in a transaction of its own, after the join (of table, publication or slot) was seen, and that transaction's
    own number: a snapshot's xmax is no bound, since what began last may have a number at or above it. The connection
    must be in autocommit mode and outside of a transaction.
    """
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")
        return _one(connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone())


def snapshot_xmin(connection: psycopg.Connection[Any]) -> int:
    return _one(connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone())


def current_snapshot(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return str(row[0])


def is_empty_after_horizon(
    connection: psycopg.Connection[Any],
    table: TableName,
    horizon: int,
    *,
    partitioned: bool,
    lock_timeout_s: float,
    statement_timeout_s: float,
) -> bool | None:
    """Whether the table is empty in a snapshot whose xmin is at or above the join horizon; None: no such snapshot yet,
    or there is no table of this name any more.

    Snapshot and look are one statement, so they are the same snapshot. RLS would hide rows: it raises instead. What
    was locked is looked at before it is read: a view put in the table's place would run its owner's functions
    with our rights.
    """
    query = sql.SQL(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, NOT EXISTS (SELECT 1 FROM {} {})"
    ).format(sql.SQL("" if partitioned else "ONLY"), sql.Identifier(table.schema, table.name))
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL row_security = off")
        _set_timeout(connection, "lock_timeout", lock_timeout_s)
        _set_timeout(connection, "statement_timeout", statement_timeout_s)
        connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(table.schema, table.name))
        )
        locked = relation_of(connection, table)
        if locked is None or locked[1] != ("p" if partitioned else "r"):
            return None
        row = connection.execute(query).fetchone()
    assert row is not None
    xmin, empty = row
    return bool(empty) if xmin >= horizon else None


def relation_of(connection: psycopg.Connection[Any], table: TableName) -> tuple[int, str] | None:
    """OID and kind of what has this name: once it is locked, of what will be read under it."""
    row = connection.execute(
        "SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (table.schema, table.name),
    ).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def _set_timeout(connection: psycopg.Connection[Any], setting: str, seconds: float) -> None:
    """For the transaction. A `SET LOCAL` with a value takes no snapshot, as the SELECT of set_config would."""
    milliseconds = sql.Literal(f"{max(1, int(seconds * 1000))}ms")
    connection.execute(sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(setting), milliseconds))


def transactions_in_flight(connection: psycopg.Connection[Any]) -> list[str]:
    """Who holds a transaction id, oldest first, in words; for messages.

    From pg_locks, which every role may read in full, unlike the columns of pg_stat_activity.
    """
    rows = connection.execute(
        "SELECT l.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::float8,"
        " (SELECT p.gid FROM pg_prepared_xacts p WHERE p.transaction = l.transactionid)"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted"
        " AND l.pid IS DISTINCT FROM pg_backend_pid() ORDER BY age(l.transactionid) DESC LIMIT 5"
    ).fetchall()
    words = []
    for pid, application, age, gid in rows:
        if gid is not None:
            words.append(f"prepared transaction {gid!r}")
        else:
            words.append(
                f"process {pid}"
                + (f" ({application})" if application else "")
                + (f", open for {duration(age)}" if age is not None else "")
            )
    return words


def _one(row: Any) -> int:
    return int(row[0])
