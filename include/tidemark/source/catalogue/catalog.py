"""Reads the source's catalogue: captured tables, types, and a fingerprint per table (R11).

The catalogue has the present state, and the stream may be older. So a table's columns come from the stream's RELATION
message. The catalogue adds what the message lacks: the types of the OIDs, the order of the key's columns, and the
primary key under FULL. Every statement is a SELECT on catalogue tables (R9). None locks a table, so that no user delays
the pipeline by holding a lock. The exception is pg_get_expr, for generated columns and row filters. Source: PostgreSQL
documentation, 53 "System Catalogs", 54.18 "pg_publication_tables".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
from msgspec import structs

from tidemark.config import PipelineConfig, TableRule
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.postgres.postgres_session import one_row
from tidemark.schema.delta_types import PgType
from tidemark.schema.fingerprint import (
    EMPTIED,
    GENERATED,
    HASHED,
    LEFT_OUT,
    SPELLED_SINCE,
    UNLISTED,
    VIRTUAL,
    WRITTEN_BY,
    ColumnPrint,
    Fingerprint,
    PartitionPrint,
    UncapturedColumn,
)
from tidemark.schema.table import Identity
from tidemark.source.catalogue.publication import PUBLISHED
from tidemark.source.catalogue.source_tables import CatalogRelation, matching
from tidemark.source.catalogue.transaction_visibility import next_xid

# A default of up to this number of characters is kept as text; of a longer one only the hash is kept.
LONGEST_DEFAULT: Final = 1000
# The number of characters of a comment that the target gets.
LONGEST_COMMENT: Final = 4000

_XIDS: Final = 2**32


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table of the source that a rule of the pipeline file names.

    - `table` is the id that it is kept as (`capture.table_ids`); without one, the name at the source.
    - `kind` is pg_class.relkind: "r", or "p" for a partition root.
    - `key` has the columns of the replica identity in index order, under FULL those of the primary key. A deferrable
      key does not count, since two rows may hold one of its values for a moment.
    - `published_columns` is empty unless the table is `published`.
    - `dropped` maps the number of each dropped column to the low 32 bits of the id of the transaction that dropped it.
    - `born` and `key_made` are those of its `CatalogRelation`.
    - `called` is the name at the source if `table` differs.
    - `leaves_without_wal` are the leaves of a root whose changes are in no stream.
    """

    table: TableName
    relation_oid: int
    kind: str
    rule: TableRule
    identity: Identity
    key: tuple[str, ...]
    columns: tuple[ColumnPrint, ...]
    published: bool
    published_columns: tuple[str, ...]
    row_filter: str | None
    dropped: dict[int, int] = field(default_factory=dict)
    born: int | None = None
    called: TableName | None = None
    leaves_without_wal: tuple[CatalogRelation, ...] = ()
    key_made: int = 0

    @property
    def name(self) -> TableName:
        """The table's name at the source."""
        return self.called or self.table

    def kept_as(self, table: TableName) -> CapturedTable:
        """This table with `table` as its id."""
        return replace(self, table=table, called=self.name)

    @property
    def captured_columns(self) -> tuple[ColumnPrint, ...]:
        """The columns that reach staging: not left out, and published if the table is."""
        return tuple(
            c
            for c in self.columns
            if c.name not in self.rule.leave_out and (not self.published or c.name in self.published_columns)
        )

    @property
    def uncaptured_columns(self) -> tuple[UncapturedColumn, ...]:
        """The columns whose values do not reach the lake, or reach it changed by a mask, with the reasons."""
        captured = {column.name for column in self.captured_columns}
        reasons = {c.name: self._why_not(c) for c in self.columns if c.name not in captured}
        masks = {"sha256": HASHED, "null": EMPTIED}
        reasons |= {name: masks[mask] for name, mask in self.rule.mask.items() if name in captured}
        return tuple(UncapturedColumn(c.name, reasons[c.name]) for c in self.columns if c.name in reasons)

    def _why_not(self, column: ColumnPrint) -> str:
        if column.name in self.rule.leave_out:
            return LEFT_OUT
        return {"s": GENERATED, "v": VIRTUAL}.get(column.generated, UNLISTED)


def read_types(conn: psycopg.Connection[Any]) -> dict[int, PgType]:
    """Every type by OID. A type counts as an array only if its element type names it as its array: int2vector has
    elements too, but another text format."""
    rows = conn.execute(
        """
        SELECT t.oid, t.typname, n.nspname, t.typtype::text, t.typbasetype, t.typtypmod,
               CASE WHEN e.typarray = t.oid THEN t.typelem ELSE 0 END, coalesce(e.typdelim, t.typdelim)::text
        FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_type e ON e.oid = t.typelem
        """
    ).fetchall()
    return {row[0]: PgType(*row) for row in rows}


def captured_tables(
    conn: psycopg.Connection[Any], config: PipelineConfig, only: int | None = None
) -> list[CapturedTable]:
    """The existing tables and partition roots that the pipeline file names, in name order, published or not. With
    `only`, an OID, just that relation."""
    named = matching(conn, config, others=False, relation=only).tables
    oids = [source_table.relation.oid for source_table in named]
    columns = _columns(conn, oids)
    published = _published(conn, config.publication, oids)
    dropped = _dropped(conn, oids)
    captured = []
    for source_table in named:
        relation = source_table.relation
        publication = published.get(relation.oid)
        captured.append(
            CapturedTable(
                table=source_table.table,
                relation_oid=relation.oid,
                kind=relation.kind,
                rule=source_table.rule,
                identity=relation.identity,
                key=() if relation.identity == "nothing" else relation.key,
                key_made=0 if relation.identity == "nothing" else relation.key_made,
                columns=tuple(columns.get(relation.oid, ())),
                published=publication is not None,
                published_columns=publication[0] if publication else (),
                row_filter=publication[1] if publication else None,
                born=relation.born,
                dropped=dropped.get(relation.oid, {}),
                leaves_without_wal=source_table.leaves_without_wal,
            )
        )
    return captured


@dataclass(frozen=True, slots=True)
class CurrentNames:
    """The present names of relations and the transactions that created them, by OID. Relations that no longer exist
    are left out; everything that happened to them lies below `lsn`."""

    names: dict[int, tuple[TableName, int]]
    lsn: Lsn


def generated_as(conn: psycopg.Connection[Any], relation: int) -> dict[str, str]:
    """The expressions of a table's generated columns, in PostgreSQL's SQL. Waits while another session holds an
    exclusive lock on the table."""
    return dict(
        conn.execute(
            """
            SELECT a.attname::text, pg_get_expr(d.adbin, d.adrelid)
              FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = %s::oid AND a.attgenerated <> '' AND NOT a.attisdropped ORDER BY a.attnum
            """,
            (relation,),
        ).fetchall()
    )


def current_names(conn: psycopg.Connection[Any], oids: Iterable[int]) -> CurrentNames:
    """Read the present names of the relations."""
    names = {
        oid: (TableName(schema, name), born)
        for oid, schema, name, born in conn.execute(
            """
            SELECT c.oid, n.nspname::text, c.relname::text, a.xmin::text::bigint
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -6
             WHERE c.oid = ANY(%s::oid[])
            """,
            (list(oids),),
        )
    }
    where = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text"
    return CurrentNames(names, Lsn.parse(one_row(conn, f"SELECT {where}".encode())[0]))


def partitions(conn: psycopg.Connection[Any], oid: int | None = None) -> set[int]:
    """The OIDs of all partitions; with `oid` only that relation's, if it exists and is a partition."""
    rows = conn.execute(
        "SELECT oid FROM pg_class WHERE relispartition AND relkind <> ALL ('{i,I}') AND oid = coalesce(%s::oid, oid)",
        (oid,),
    )
    return {relation for (relation,) in rows}


def made_by(conn: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, int]:
    """Relation OID -> the 64-bit id of the transaction or subtransaction that created it. Relations whose schema
    was changed since are left out.

    CREATE writes a relation's dependency on its schema in the same command as its system columns, and SET SCHEMA writes
    the dependency again. A GRANT may write some of the columns again.
    """
    return dict(
        conn.execute(
            """
            SELECT d.objid, max(now.xid - ((now.xid - d.xmin::text::bigint) & 4294967295))
              FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid) now, pg_depend d
             WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY(%s::oid[]) AND d.objsubid = 0
               AND d.refclassid = 'pg_namespace'::regclass
               AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = d.objid AND a.attnum < 0
                              AND a.xmin = d.xmin AND a.cmin = d.cmin)
             GROUP BY 1
            """,
            (list(oids),),
        ).fetchall()
    )


def never_renamed(conn: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, int]:
    """The result of `made_by`, without the relations that were renamed since they were created. CREATE TABLE writes
    the row type in the same command as the columns, and a rename writes it again."""
    called = conn.execute(
        """
        SELECT c.oid FROM pg_class c
          JOIN pg_type t ON t.oid = c.reltype
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -6
         WHERE c.oid = ANY(%s::oid[]) AND t.xmin = a.xmin AND t.cmin = a.cmin
        """,
        (list(oids),),
    ).fetchall()
    return made_by(conn, [oid for (oid,) in called])


def fingerprint(
    conn: psycopg.Connection[Any], publication: str, tables: Iterable[CapturedTable]
) -> dict[str, Fingerprint]:
    """Table id -> the table's present fingerprint in the catalogue (R11)."""
    by_oid = {table.relation_oid: table for table in tables}
    oids = list(by_oid)
    storage = {
        oid: numbers
        for oid, *numbers in conn.execute(
            """
            SELECT c.oid, coalesce(pg_relation_filenode(c.oid), 0), c.relnatts, c.reltoastrelid,
                   coalesce((SELECT d.xmin::text::bigint FROM pg_depend d
                              WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                                AND d.refclassid = 'pg_namespace'::regclass), 0)
              FROM pg_class c WHERE c.oid = ANY(%s::oid[])
            """,
            (oids,),
        )
    }
    gone = (0, 0, 0, 0)
    partitions_of = leaves(conn, oids)
    membership = _membership(conn, publication, oids)
    written_by = "SELECT coalesce(max(xmin::text::bigint), 0) FROM pg_publication WHERE pubname = %s"
    (publication_xmin,) = one_row(conn, written_by, (publication,))
    return {
        str(table.table): Fingerprint(
            relation_oid=oid,
            relfilenode=storage.get(oid, gone)[0],
            last_attnum=storage.get(oid, gone)[1],
            toast=storage.get(oid, gone)[2],
            schema_xmin=storage.get(oid, gone)[3],
            identity=table.identity,
            key=table.key,
            key_made=table.key_made,
            columns=tuple(
                structs.replace(c, missing="masked", default=None)
                if c.missing is not None and c.name in table.rule.mask
                else c
                for c in table.captured_columns
            ),
            partitions=tuple(partitions_of.get(oid, ())),
            membership=tuple(membership.get(oid, ())),
            row_filter=table.row_filter,
            published_columns=table.published_columns,
            publication_xmin=publication_xmin,
            dropped=tuple((attnum, "") for attnum in table.dropped),
            uncaptured=table.uncaptured_columns if table.published else (),
        )
        for oid, table in by_oid.items()
    }


def with_comments(conn: psycopg.Connection[Any], prints: dict[str, Fingerprint]) -> dict[str, Fingerprint]:
    """The fingerprints with the comments of tables and columns. It takes one query for any number of tables."""
    comments: dict[tuple[int, int], str] = {}
    for oid, number, text in conn.execute(
        "SELECT objoid, objsubid, description FROM pg_description "
        "WHERE classoid = 'pg_class'::regclass AND objoid = ANY(%s::oid[])",
        ([one.relation_oid for one in prints.values()],),
    ):
        comments[oid, number] = text[:LONGEST_COMMENT]
    return {
        table: structs.replace(
            one,
            comment=comments.get((one.relation_oid, 0), ""),
            columns=tuple(
                structs.replace(c, comment=comments.get((one.relation_oid, c.attnum), "")) for c in one.columns
            ),
        )
        for table, one in prints.items()
    }


def _columns(conn: psycopg.Connection[Any], oids: list[int]) -> dict[int, list[ColumnPrint]]:
    """Table OID -> its columns.

    A column that was added later has a value for the older rows. The catalogue stores it with the leaves of a
    partitioned table, never with the root, and it may be as long as any value. So its hash is kept, and a short value
    also as the text of its type's output function, as in the stream.

    The column's dependency on its type (pg_depend) has the transaction that gave the column this type: unlike the
    column's own row, no other ALTER writes it again. Command ids order two rows of one transaction.
    """
    columns: dict[int, list[ColumnPrint]] = {}
    spellings, spelled_by = _spellings(conn, oids)
    upcoming = next_xid(conn) if spelled_by else 0
    for oid, *facts in conn.execute(
        """
        WITH RECURSIVE tree AS (
            SELECT oid AS root, oid AS relation FROM pg_class WHERE oid = ANY(%s::oid[]) AND relkind = 'p'
            UNION ALL SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.relation
        ), of_leaves AS (
            SELECT tree.root, l.attname, max(hashtextextended(l.attmissingval::text, 0)) AS hash,
                   min(array_to_string(l.attmissingval, '')) AS first, max(array_to_string(l.attmissingval, '')) AS last
            FROM tree JOIN pg_attribute l ON l.attrelid = tree.relation
            WHERE l.attnum > 0 AND l.atthasmissing AND NOT l.attisdropped GROUP BY 1, 2
        )
        SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated::text,
               CASE WHEN c.relkind = 'p' THEN o.hash ELSE hashtextextended(a.attmissingval::text, 0) END::text,
               a.xmin::text::bigint,
               CASE WHEN c.relkind <> 'p' THEN array_to_string(a.attmissingval, '')
                    WHEN o.first = o.last THEN o.first END,
               coalesce(typed.by, a.xmin::text::bigint), coalesce(typed.command, a.cmin::text::bigint), a.attndims
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN of_leaves o ON o.root = a.attrelid AND o.attname = a.attname
        LEFT JOIN LATERAL (
            SELECT d.xmin::text::bigint AS by, d.cmin::text::bigint AS command FROM pg_depend d
            WHERE d.classid = 'pg_class'::regclass AND d.objid = a.attrelid AND d.objsubid = a.attnum
            AND d.refclassid = 'pg_type'::regclass AND d.refobjid = a.atttypid LIMIT 1
        ) typed ON a.atttypid >= 16384
        WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attrelid, a.attnum
        """,
        (oids, oids),
    ):
        *plain, default, typed_by, command, dimensions = facts
        column = ColumnPrint(*plain)
        kept = default if default is not None and len(default) <= LONGEST_DEFAULT else None
        spelling = spellings.get(column.type_oid, {})
        typed = (-_ago(typed_by, upcoming), command)
        if any((-_ago(xid, upcoming), written) > typed for xid, written in spelled_by.get(column.type_oid, ())):
            spelling = {**spelling, SPELLED_SINCE: "the column"}
        columns.setdefault(oid, []).append(
            structs.replace(column, spelling=spelling, default=kept, dimensions=dimensions)
        )
    return columns


def _ago(xid: int, upcoming: int) -> int:
    """The number of transactions since the one whose id has these low 32 bits."""
    return (upcoming - xid) % _XIDS


def _dropped(conn: psycopg.Connection[Any], oids: list[int]) -> dict[int, dict[int, int]]:
    """Table OID -> the numbers of its dropped columns, each with the transaction that dropped it. The catalogue no
    longer has their names."""
    dropped: dict[int, dict[int, int]] = {}
    for oid, attnum, xmin in conn.execute(
        "SELECT attrelid, attnum, xmin::text::bigint FROM pg_attribute "
        "WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND attisdropped ORDER BY attrelid, attnum",
        (oids,),
    ):
        dropped.setdefault(oid, {})[attnum] = xmin
    return dropped


def _spellings(
    conn: psycopg.Connection[Any], oids: list[int]
) -> tuple[dict[int, dict[str, str]], dict[int, set[tuple[int, int]]]]:
    """Type OID -> the labels of the enums and the columns of the composite types in it, and the transactions (low
    32 bits) that wrote these, each with its command id. Types without any are left out.

    RENAME VALUE and ADD ATTRIBUTE change the text of stored values, and leave no trace in the table or the stream. An
    attribute that existed for a while, or a label that had another name for a while, changed the text in the stream
    meanwhile.
    """
    spellings: dict[int, dict[str, str]] = {}
    spelled_by: dict[int, set[tuple[int, int]]] = {}
    for type_oid, function, text, writers, commands in conn.execute(
        """
        WITH RECURSIVE held AS (
            SELECT DISTINCT atttypid AS root, atttypid AS type FROM pg_attribute
            WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
            UNION
            SELECT held.root, part.type FROM held JOIN pg_type t ON t.oid = held.type
            CROSS JOIN LATERAL (
                SELECT t.typelem AS type WHERE t.typelem <> 0
                UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
                UNION ALL SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
                UNION ALL SELECT atttypid FROM pg_attribute
                WHERE t.typtype = 'c' AND attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
            ) AS part
        )
        SELECT held.root, 'label ' || e.oid, e.enumlabel::text, array[e.xmin::text::bigint],
               array[e.cmin::text::bigint]
        FROM held JOIN pg_enum e ON e.enumtypid = held.type
        UNION ALL
        SELECT held.root, 'label ' || e.oid || %s, e.xmin::text, '{}', '{}'
        FROM held JOIN pg_enum e ON e.enumtypid = held.type
        UNION ALL
        SELECT held.root, 'columns ' || t.oid,
               string_agg(CASE WHEN a.attisdropped THEN '-' ELSE a.attnum::text END, ',' ORDER BY a.attnum),
               array_agg(a.xmin::text::bigint), array_agg(a.cmin::text::bigint)
        FROM held JOIN pg_type t ON t.oid = held.type AND t.typtype = 'c'
        JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
        GROUP BY held.root, t.oid
        """,
        (oids, WRITTEN_BY),
    ):
        if text is not None:
            spellings.setdefault(type_oid, {})[function] = text
        spelled_by.setdefault(type_oid, set()).update(zip(writers, commands, strict=True))
    return spellings, spelled_by


def _published(
    conn: psycopg.Connection[Any], publication: str, oids: list[int]
) -> dict[int, tuple[tuple[str, ...], str | None]]:
    """Table OID -> published columns and row filter, for the tables that are published. Column lists and row
    filters only apply to a table that was added by itself. All other tables have every column except generated
    ones, which 18 may publish."""
    generated = "a.attgenerated = 's' AND o.pubgencols = 's'" if conn.info.server_version >= 180000 else "false"
    return {
        oid: (tuple(columns), row_filter)
        for oid, columns, row_filter in conn.execute(
            f"""
            SELECT t.relation, array(
                       SELECT a.attname::text FROM pg_attribute a
                        WHERE a.attrelid = t.relation AND a.attnum > 0 AND NOT a.attisdropped
                          AND CASE WHEN by_itself AND t.prattrs IS NOT NULL THEN a.attnum = ANY (t.prattrs::int2[])
                                   ELSE a.attgenerated = '' OR ({generated}) END
                        ORDER BY a.attnum),
                   CASE WHEN by_itself THEN pg_get_expr(t.prqual, t.relation) END
              FROM (SELECT published.*, NOT puballtables AND by_schema IS NULL AS by_itself
                      FROM ({PUBLISHED}) published WHERE relation = ANY (%(oids)s::oid[])) t
              JOIN pg_publication o ON o.oid = t.publication
            """.encode(),
            {"publication": publication, "oids": oids},
        )
    }


def _membership(conn: psycopg.Connection[Any], publication: str, oids: list[int]) -> dict[int, list[str]]:
    """Table OID -> the catalogue rows that publish it, each by its OID. A row that is dropped and made again has
    another OID."""
    membership: dict[int, list[str]] = {}
    for oid, row in conn.execute(
        """
        WITH publication AS (SELECT oid, puballtables FROM pg_publication WHERE pubname = %s)
        SELECT c.oid, 'publication ' || p.oid FROM pg_class c, publication p
        WHERE p.puballtables AND c.oid = ANY(%s::oid[])
        UNION ALL
        SELECT r.prrelid, 'table ' || r.oid FROM pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
        WHERE r.prrelid = ANY(%s::oid[])
        UNION ALL
        SELECT c.oid, 'schema ' || s.oid FROM pg_publication_namespace s JOIN publication p ON p.oid = s.pnpubid
        JOIN pg_class c ON c.relnamespace = s.pnnspid WHERE c.oid = ANY(%s::oid[])
        ORDER BY 1, 2
        """,
        (publication, oids, oids, oids),
    ):
        membership.setdefault(oid, []).append(row)
    return membership


def leaves(conn: psycopg.Connection[Any], roots: list[int]) -> dict[int, list[PartitionPrint]]:
    """Root OID -> its leaves by OID, each with whether it was empty when it joined.

    CREATE TABLE … PARTITION OF writes the link, the row type and the columns in one transaction. It writes row type and
    columns in one command, and then the columns with a default once more. ATTACH PARTITION writes all columns again, so
    that none has the row type's command id, even within one transaction.
    """
    by_root: dict[int, list[PartitionPrint]] = {}
    for root, *facts in conn.execute(
        """
        WITH RECURSIVE tree AS (
            SELECT oid AS root, oid AS relation, true AS born_empty, '' AS links FROM pg_class
            WHERE oid = ANY(%s::oid[]) AND relkind = 'p'
            UNION ALL
            SELECT tree.root, i.inhrelid,
                   tree.born_empty AND i.xmin = t.xmin AND EXISTS (
                       SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                       AND a.xmin = t.xmin AND a.cmin = t.cmin),
                   tree.links || ' ' || i.xmin::text
            FROM tree JOIN pg_inherits i ON i.inhparent = tree.relation AND NOT i.inhdetachpending
            JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_type t ON t.oid = c.reltype
        )
        SELECT tree.root, tree.relation, coalesce(pg_relation_filenode(tree.relation), 0), tree.born_empty,
               ltrim(tree.links), c.xmin::text::bigint, c.reltoastrelid
        FROM tree JOIN pg_class c ON c.oid = tree.relation WHERE c.relkind <> 'p'
        ORDER BY 1, 2
        """,
        (roots,),
    ):
        by_root.setdefault(root, []).append(PartitionPrint(*facts))
    return by_root
