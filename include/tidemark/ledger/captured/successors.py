"""Records the swap of a table's id for another, whose Delta tables are built beside the old ones: rows of `shapes`.

    reserve         a drain reads the change, and an id for the new table is chosen
    begin           its batch is registered: the relation has the new id from here on, the old id leaves
    record_naming   all rows are in the new table: a plan writes its name into `_positions`
    complete        the plan's result confirms that; the replaced table is put aside (`ledger.captured.put_aside`)

Readers use the old table until `complete`. If another successor follows before that, the incomplete one is given up,
and the next one is built beside the same live table. A replay is a successor too, with the shape of the live table;
`ledger.captured.replays` has its base.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidemark.formats.manifest import BatchManifest, TableMark
from tidemark.ledger.captured import (
    backfill_marks,
    definition_changes,
    joins,
    merge_states,
    relation_ids,
    replays,
    tables,
    unfit_values,
)
from tidemark.ledger.captured.definition_changes import DefinitionEvidence
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills
from tidemark.lsn import Lsn
from tidemark.names import TableName

# The kind of `needs_backfill` of a table that is built beside another one.
ANOTHER_SHAPE: Final = "another_shape"
KINDS: Final = (ANOTHER_SHAPE, backfill_marks.REPLAYED)
FOLLOWED: Final = "the table has another shape by now, which a backfill of its own builds"


@dataclass(frozen=True, slots=True)
class Successor:
    """`table` is the id of a relation after `before`. It is built `beside` the table that readers use. It has been
    complete since `placed_at`. All changes of `before` lie below `begun_lsn`."""

    table: str
    before: str
    beside: str
    begun_lsn: Lsn
    placed_at: datetime | None


def all_of(ledger: Ledger) -> dict[str, Successor]:
    """The successors that a registered batch has begun, by id."""
    rows = ledger.execute(
        'SELECT "table", before, beside, begun_lsn, placed_at FROM tidemark.shapes '
        'WHERE pipeline = %s AND begun_lsn IS NOT NULL ORDER BY "table"',
        (ledger.pipeline,),
    )
    return {row[0]: Successor(*row) for row in rows}


def unplaced(ledger: Ledger) -> set[str]:
    """The successors that are not complete, including those that were given up."""
    return {table for table, shape in all_of(ledger).items() if shape.placed_at is None}


def beside(shapes: Mapping[str, Successor], table: str) -> str:
    """The table that readers use for the relation of this table."""
    shape = shapes.get(table)
    return table if shape is None or shape.placed_at is not None else shape.beside


def reserve(ledger: Ledger, before: TableName, in_lake: Callable[[], Iterable[int]]) -> TableName:
    """Choose the id of the table's successor. A drain that runs again gets the same id."""
    with ledger.transaction():
        relation_ids.lock(ledger)
        reserved = ledger.value(
            'SELECT "table" FROM tidemark.shapes WHERE pipeline = %s AND before = %s AND begun_lsn IS NULL',
            (ledger.pipeline, str(before)),
        )
        if reserved is not None:
            return TableName.parse(reserved)
        table = relation_ids.next_place(ledger, before.at_source, in_lake)
        ledger.insert("shapes", table=str(table), before=str(before))
    return table


def is_built_by_capture(row: TableRow, called: TableName, evolves: Callable[[TableName], str]) -> bool:
    """Whether the capture starts the backfill that the table needs, whatever the file says about other backfills:
    it is built beside another one and has the relation's present changes."""
    return row.backfill_kind == ANOTHER_SHAPE and evolves(called) == "follow"


def marks_of(manifest: BatchManifest) -> dict[str, TableMark]:
    """The marks of the successors that the batch begins, by table."""
    return {mark.table: mark for mark in manifest.marks if mark.kind in KINDS}


def tables_left(ledger: Ledger, manifest: BatchManifest) -> dict[str, str]:
    """Maps each table that the batch begins, in order, to the table that its relation had before."""
    begun = marks_of(manifest)
    if not begun:
        return {}
    known = relation_ids.all_of(ledger, manifest.source.system_identifier)
    kept_as = {oid: relation.table for oid, relation in known.items()}
    left = {}
    for table, oid in sorted({(s.table, s.relation_oid) for s in manifest.schemas if str(s.table) in begun}):
        if oid in kept_as and kept_as[oid] != table:
            left[str(table)] = str(kept_as[oid])
            kept_as[oid] = table
    return left


def begin(ledger: Ledger, manifest: BatchManifest, left: Mapping[str, str]) -> None:
    """Keep the relations as these tables from here on. Their former tables leave: they get no more changes, and
    their open backfill is closed."""
    marks = marks_of(manifest)
    for table, before in left.items():
        row = tables.one(ledger, before)
        is_replay = marks[table].kind == backfill_marks.REPLAYED
        if not is_replay:
            # Its backfill also brings what another mark says that its rows lack.
            backfill_marks.rename(ledger, table, ANOTHER_SHAPE, marks[table].message)
        base = replays.begin(ledger, manifest, table, before) if is_replay else None
        backfills.close_of(ledger, before, FOLLOWED)
        if row is not None and row.life.is_captured:
            joins.leave(ledger, before)
        if row is not None and row.life.is_paused:
            merge_states.pause(ledger, table, row.paused_by or "")
        ledger.execute(
            """
            INSERT INTO tidemark.shapes
                   (pipeline, "table", before, beside, begun_lsn, base_generation, base_lsn)
            VALUES (%s, %s, %s, %s, %s, %s, %s)
            ON CONFLICT (pipeline, "table") DO UPDATE
               SET before = excluded.before, beside = excluded.beside, begun_lsn = excluded.begun_lsn,
                   begun_at = clock_timestamp(), base_generation = excluded.base_generation,
                   base_lsn = excluded.base_lsn
            """,
            (
                ledger.pipeline,
                table,
                before,
                beside(all_of(ledger), before),
                manifest.end_lsn,
                None if base is None else manifest.generation,
                base,
            ),
        )
        if is_replay:
            unfit_values.take_over(ledger, table, before)
            continue
        versions = tables.versions_of(ledger, [before, table])
        older, newer = versions.get(before, []), versions.get(table, [])
        shown = DefinitionEvidence(
            manifest.generation, manifest.start_lsn, older[-1] if older else None, newer[0] if newer else None
        )
        definition_changes.add(ledger, table, shown, "rebuilt", marks[table].message)


def record_naming(ledger: Ledger, plan: str, whole: Collection[str]) -> None:
    """Record that a plan writes the names of these tables' relations into `_positions`."""
    ledger.execute(
        'UPDATE tidemark.shapes SET named_by = %s WHERE pipeline = %s AND "table" = ANY(%s) AND placed_at IS NULL',
        (plan, ledger.pipeline, sorted(whole)),
    )


def complete(ledger: Ledger, plan: str, failed: Collection[str]) -> list[str]:
    """Record as complete the tables whose names the plan wrote, except those that `failed`. Returns them: readers use
    them now."""
    rows = ledger.execute(
        "UPDATE tidemark.shapes SET placed_at = clock_timestamp() WHERE pipeline = %s AND named_by = %s "
        'AND placed_at IS NULL AND "table" <> ALL(%s) RETURNING "table"',
        (ledger.pipeline, plan, sorted(failed)),
    )
    return sorted(table for (table,) in rows)


def given_up(ledger: Ledger, table: str) -> list[Successor]:
    """As `replaced_by`, for a successor that is not complete and never will be; empty for any other table."""
    shape = all_of(ledger).get(table)
    return [] if shape is None or shape.placed_at is not None else replaced_by(ledger, table)


def replaced_by(ledger: Ledger, table: str) -> list[Successor]:
    """The successors of the relation from this one back to the first that was built beside the same table. Readers
    need none of the earlier ones once this one is complete."""
    known = all_of(ledger)
    shapes = [known[table]]
    while shapes[-1].before != shapes[-1].beside and shapes[-1].before in known:
        shapes.append(known[shapes[-1].before])
    return shapes
