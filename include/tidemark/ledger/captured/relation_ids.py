"""Assigns each relation of the source its table id: OID -> id, present name, and whether the relation exists.

An id is a name and a place (`names.TableName`). The first relation with a name has only the name as its id. If it is
dropped or renamed, the next relation with this name gets the next place, and so its own Delta tables, positions and
schema versions. A relation keeps its id after a rename. Another server has other OIDs; there, a relation takes over the
id of the relation with the same name on the server before.

Preflight or the drain adds a row for a new relation. So does the registration of a batch, from the relations in its
manifest. Rows are never deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import TableSchema


@dataclass(frozen=True, slots=True)
class RelationRecord:
    """`table` is its id, `name` its last name at the source. `born` is the transaction that created it (32 bits),
    None if it was not read: an OID may be used again. All of it lies below `gone_lsn`, None while it exists."""

    oid: int
    table: TableName
    name: TableName
    born: int | None
    gone_lsn: Lsn | None

    def is_another(self, born: int | None) -> bool:
        """Whether a relation with this OID that the given transaction created is another one."""
        return None not in (self.born, born) and self.born != born


def all_of(ledger: Ledger, system_identifier: str) -> dict[int, RelationRecord]:
    """The relations of one server by OID."""
    rows = ledger.execute(
        'SELECT relation_oid, "table", name, born, gone_lsn FROM tidemark.relations '
        "WHERE pipeline = %s AND system_identifier = %s",
        (ledger.pipeline, system_identifier),
    )
    return {
        oid: RelationRecord(oid, TableName.parse(table), TableName.parse(name), born, gone)
        for oid, table, name, born, gone in rows
    }


def names(ledger: Ledger) -> dict[str, TableName]:
    """The present or last name at the source, by table id."""
    rows = ledger.execute(
        'SELECT DISTINCT ON ("table") "table", name FROM tidemark.relations WHERE pipeline = %s '
        'ORDER BY "table", gone_lsn IS NOT NULL, noted_at DESC',
        (ledger.pipeline,),
    )
    return {table: TableName.parse(name) for table, name in rows}


def name_of(ledger: Ledger, table: str) -> TableName:
    return name_in(names(ledger), table)


def name_in(known: Mapping[str, TableName], table: str) -> TableName:
    """The table's name in `names`; without a relation, the name in its id."""
    return known.get(table, TableName.parse(table).at_source)


@dataclass(frozen=True, slots=True)
class _TableId:
    """An id in the ledger, with the servers on which a relation is kept under it, and the last name there."""

    table: TableName
    systems: frozenset[str]
    there: frozenset[TableName]


def _table_ids(ledger: Ledger) -> list[_TableId]:
    """Every id in use in the pipeline, chosen but unused ones included."""
    rows = ledger.execute(
        """
        SELECT "table", coalesce(array_agg(system_identifier) FILTER (WHERE system_identifier IS NOT NULL), '{}'),
               coalesce(array_agg(name) FILTER (WHERE name IS NOT NULL), '{}')
          FROM (
            SELECT "table", system_identifier, CASE WHEN gone_lsn IS NULL THEN name END AS name
              FROM tidemark.relations WHERE pipeline = %(pipeline)s
             UNION ALL
            SELECT "table", NULL, NULL FROM tidemark.tables WHERE pipeline = %(pipeline)s
             UNION ALL
            SELECT "table", NULL, NULL FROM tidemark.shapes WHERE pipeline = %(pipeline)s) known
         GROUP BY "table"
        """,
        {"pipeline": ledger.pipeline},
    )
    return [
        _TableId(TableName.parse(table), frozenset(systems), frozenset(map(TableName.parse, names)))
        for table, systems, names in rows
    ]


def choose(
    ledger: Ledger, system_identifier: str, called: TableName, in_lake: Callable[[], Iterable[int]]
) -> TableName:
    """Choose the id of a new relation. `in_lake` are the places of that name in the lake: a lost or restored ledger
    may lack some, and then it is unknown which relation their tables belong to."""
    known = _table_ids(ledger)
    left = [one.table for one in known if called in one.there and system_identifier not in one.systems]
    if left:
        return max(left)
    of_name = [one for one in known if one.table.at_source == called]
    if [one.table for one in of_name] == [called] and not of_name[0].systems:
        return called
    places = [*(one.table.place for one in of_name), *in_lake()]
    return TableName(called.schema, called.name, 1 + max(places)) if places else called


def next_place(ledger: Ledger, name: TableName, in_lake: Callable[[], Iterable[int]]) -> TableName:
    """The next place of the name that neither the ledger nor the lake has."""
    places = [one.table.place for one in _table_ids(ledger) if one.table.at_source == name]
    return TableName(name.schema, name.name, 1 + max([1, *places, *in_lake()]))


def lock(ledger: Ledger) -> None:
    """Lock the pipeline's row until the caller's transaction ends. Ids are chosen under it."""
    ledger.insert("pipelines", or_nothing=True)
    ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR UPDATE", (ledger.pipeline,))


def assign(
    ledger: Ledger,
    system_identifier: str,
    oid: int,
    called: TableName,
    born: int | None,
    in_lake: Callable[[], Iterable[int]],
) -> RelationRecord:
    """The relation's record. It gets an id if it has none, or if its OID belonged to another relation."""
    with ledger.transaction():
        lock(ledger)
        relation = all_of(ledger, system_identifier).get(oid)
        if relation is not None and not relation.is_another(born):
            return relation
        table = choose(ledger, system_identifier, called, in_lake)
        ledger.execute(
            """
            INSERT INTO tidemark.relations (pipeline, system_identifier, relation_oid, "table", name, born)
            VALUES (%s, %s, %s, %s, %s, %s)
            ON CONFLICT (pipeline, system_identifier, relation_oid) DO UPDATE
               SET "table" = excluded."table", name = excluded.name, born = excluded.born, gone_lsn = NULL,
                   gone_at = NULL, noted_at = clock_timestamp()
            """,
            (ledger.pipeline, system_identifier, oid, str(table), str(called), born),
        )
    return RelationRecord(oid, table, called, born, None)


def note(
    ledger: Ledger, system_identifier: str, now: Mapping[int, tuple[TableName, int]], gone: Collection[int], lsn: Lsn
) -> None:
    """Store the catalogue's names and creators of known relations by OID, and which are `gone`: all of those lies
    below `lsn`."""
    ledger.execute(
        """
        UPDATE tidemark.relations r
           SET name = n.name, born = coalesce(r.born, n.born), gone_lsn = NULL, gone_at = NULL,
               noted_at = clock_timestamp()
          FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS n (oid, name, born)
         WHERE r.pipeline = %s AND r.system_identifier = %s AND r.relation_oid = n.oid
        """,
        (
            list(now),
            [str(name) for name, _ in now.values()],
            [born for _, born in now.values()],
            ledger.pipeline,
            system_identifier,
        ),
    )
    ledger.execute(
        """
        UPDATE tidemark.relations SET gone_lsn = %s, gone_at = clock_timestamp(), noted_at = clock_timestamp()
         WHERE pipeline = %s AND system_identifier = %s AND relation_oid = ANY(%s) AND gone_lsn IS NULL
        """,
        (lsn, ledger.pipeline, system_identifier, list(gone)),
    )


def carry(ledger: Ledger, before: str, after: str) -> None:
    """Keep each relation under the system that `pg_upgrade` made too, which has the same OIDs. The creating
    transaction differs there and is not known yet."""
    ledger.execute(
        """
        INSERT INTO tidemark.relations (pipeline, system_identifier, relation_oid, "table", name)
        SELECT pipeline, %s, relation_oid, "table", name FROM tidemark.relations
         WHERE pipeline = %s AND system_identifier = %s AND gone_lsn IS NULL
        ON CONFLICT (pipeline, system_identifier, relation_oid) DO UPDATE
           SET "table" = excluded."table", name = excluded.name, noted_at = clock_timestamp()
        """,
        (after, ledger.pipeline, before),
    )


def keep_staged(ledger: Ledger, system_identifier: str, schemas: Iterable[TableSchema]) -> list[str]:
    """Record from a manifest that the files of its definitions belong to these relations. Returns the ids that
    relations had before and none has now."""
    staged: dict[int, TableName] = {}
    for schema in schemas:
        staged[schema.relation_oid] = max(schema.table, staged.get(schema.relation_oid, schema.table))
    had = {relation.table for oid, relation in all_of(ledger, system_identifier).items() if oid in staged}
    ledger.execute(
        """
        INSERT INTO tidemark.relations AS known (pipeline, system_identifier, relation_oid, "table", name)
        SELECT %s, %s, s.* FROM unnest(%s::bigint[], %s::text[], %s::text[]) s
        ON CONFLICT (pipeline, system_identifier, relation_oid) DO UPDATE SET "table" = excluded."table"
         WHERE known."table" <> excluded."table"
        """,
        (
            ledger.pipeline,
            system_identifier,
            list(staged),
            [str(table) for table in staged.values()],
            [str(table.at_source) for table in staged.values()],
        ),
    )
    there = {relation.table for relation in all_of(ledger, system_identifier).values()}
    return [str(table) for table in had - there]
