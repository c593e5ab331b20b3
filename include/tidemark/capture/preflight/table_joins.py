"""Records in the ledger the tables that join and leave, and judges each join once.

Rows from before a table's join are in no stream, so it needs a backfill, unless it is empty in a snapshot whose xmin is
at or above its join horizon. The checks of all tables share one time limit. A table that is locked or slow counts as
one with rows, and costs the others nothing (R6, R9).

A publication FOR ALL TABLES or of a schema has a table before its join. The stream then may have the inserts of rows
whose removal it does not have: a partition was truncated by its name, or rows were deleted while the table was
UNLOGGED, in another schema or out of the publication. So an empty table counts as empty only if it still has the files
and the schema that it was created with.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

import psycopg

from tidemark.capture import lake_folder
from tidemark.capture.preflight.table_findings import captured_tables
from tidemark.capture.preflight_context import SHORTEST_LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S, PreflightContext
from tidemark.config import PipelineConfig
from tidemark.errors import TimelineNotFollowed
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.ledger.captured import backfill_marks, joins, successors
from tidemark.ledger.captured import put_aside as pairs_put_aside
from tidemark.ledger.captured import tables as ledger_tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.staged import batches, generations
from tidemark.names import TableName
from tidemark.schema import table_life
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source.catalogue import catalog, table_locks, transaction_visibility
from tidemark.source.catalogue.publication import Publication
from tidemark.source.catalogue.source_tables import Matching, SourceTable
from tidemark.source.wal.wal_messages import make_durable
from tidemark.storage.store import Store

# The time limit for checking all joining tables for rows.
CHECKS_S: Final = 60


def leaving(survey: PreflightContext, matched: Matching, published: Publication | None) -> list[str]:
    """The tables that the ledger has as captured, and that are missing in the file or the publication now."""
    captured = {str(survey.table_ids.id_of_table(table)) for table in captured_tables(matched, published)}
    rows = ledger_tables.all_of(survey.ledger)
    return [row.table for row in rows if row.life.is_captured and row.table not in captured]


def joining(
    survey: PreflightContext, matched: Matching, published: Publication | None
) -> list[tuple[SourceTable, TableRow | None]]:
    """Captured tables whose join was not judged yet, each with its row in the ledger."""
    rows = {row.table: row for row in ledger_tables.all_of(survey.ledger)}
    pairs = [
        (table, rows.get(str(survey.table_ids.id_of_table(table)))) for table in captured_tables(matched, published)
    ]
    return [(table, row) for table, row in pairs if row is None or row.life.awaits_its_join]


def begun_in_stream(survey: PreflightContext, matched: Matching, published: Publication | None) -> set[str]:
    """The joining tables whose rows are all in the stream. Such a table was created under its name in the place of
    a captured one that was dropped, after that one had joined. A publication of all tables, or of all tables of its
    schema, has published both. Call it before the dropped table leaves."""
    rows = {row.table: row for row in ledger_tables.all_of(survey.ledger)}
    pairs = {}
    for table, _ in joining(survey, matched, published):
        before = [rows[str(one)] for one in survey.table_ids.predecessors(table.table) if str(one) in rows]
        exact = [row for row in before if row.life.keeps_its_promise and row.life.can_be_read and row.fingerprint]
        if len(exact) == 1:
            pairs[table.relation.oid] = (table, exact[0])
    if not pairs:
        return set()
    looked_at = catalog.captured_tables(survey.source, survey.config)
    prints = catalog.fingerprint(
        survey.source, survey.config.publication, [t for t in looked_at if t.relation_oid in pairs]
    )
    made = catalog.never_renamed(survey.source, pairs)
    begun = set()
    for oid, (table, row) in pairs.items():
        now = prints.get(str(table.table))
        if oid not in made or now is None or now.relation_oid != oid or made[oid] < (row.join_horizon or 0):
            continue
        if not now.is_as_created:
            continue
        assert row.fingerprint is not None
        then = Fingerprint.from_json(row.fingerprint)
        if now.is_published_since(then):
            begun.add(str(survey.table_ids.id_of_table(table)))
    return begun


def join(
    survey: PreflightContext,
    matched: Matching,
    published: Publication | None,
    begun: Collection[str] = frozenset(),
    *,
    is_slot_new: bool = False,
) -> None:
    """Judge the joining tables: a table needs no backfill if it was empty in a snapshot that includes everything
    that the stream lacks. For the tables of `begun` the stream lacks nothing. If the slot is new, the stream has no
    changes from before the join."""
    newcomers = joining(survey, matched, published)
    if not newcomers:
        return
    horizon = transaction_visibility.join_horizon(survey.source)
    blockers = transaction_visibility.await_horizon(
        survey.source, horizon, survey.config.bounds.lock_timeout_s, "the capture"
    )
    checks = _EmptyChecks(survey.source, survey.config.bounds.lock_timeout_s)
    # The fingerprints are read before the checks, so that any later alteration differs from the fingerprint (R11).
    with table_locks.lock_bounded(survey.source, survey.config.bounds.lock_timeout_s, "the tables that join"):
        captured = survey.table_ids.with_ids(
            t for t in catalog.captured_tables(survey.source, survey.config) if t.published
        )
        prints = catalog.fingerprint(survey.source, survey.config.publication, captured)
    always_published = set(prints) if is_slot_new else _always_published(survey, prints)
    as_created = set(prints) if is_slot_new else _as_created(survey, prints)
    emptied = {str(table.table) for table, _ in newcomers if not blockers and checks.is_empty(table, horizon) is True}
    # Horizon, publication and checks are the evidence of the judgement, which a crash of the source must not undo.
    seen = make_durable(survey.source)
    opened = generations.current(survey.ledger)
    if opened is not None and seen.timeline < opened.timeline:
        raise TimelineNotFollowed(what="No table joined", timeline=seen.timeline, followed=opened.timeline)
    for table, row in newcomers:
        kept_as = survey.table_ids.id_of_table(table)
        table_id = str(kept_as)
        backfill: tuple[str, str] | None = None
        if row is not None and not row.life.is_captured:
            why = "it was out of the publication for a while; what changed meanwhile is in no stream"
            backfill = (backfill_marks.REJOINED, why)
        elif str(kept_as) in begun:
            pass
        elif kept_as.place == 1 and _in_lake(survey.config, kept_as):
            backfill = (backfill_marks.REJOINED, "its Delta table is older than the ledger's knowledge of it")
        elif blockers:
            why = f"transactions older than its capture are still open: {listed(blockers)}"
            backfill = (backfill_marks.EXISTING_ROWS, why)
        elif str(table.table) not in emptied:
            backfill = (backfill_marks.EXISTING_ROWS, "it had rows before it was captured")
        elif table_id not in as_created:
            backfill = (
                backfill_marks.EXISTING_ROWS,
                "it was altered before its first run, and what went then is in no stream",
            )
        if row is None and table_id in prints and table_id not in always_published:
            why = "it was not in the publication all the time: what changed before its first run may be in no stream"
            backfill = (backfill_marks.REJOINED, why)
        if (row is None or row.fingerprint is None) and table_id in prints:
            ledger_tables.keep_fingerprints(survey.ledger, {table_id: prints[table_id]})
        joins.join(survey.ledger, table_id, horizon, seen, backfill=backfill)
    survey.note("tables", f"Capturing {listed(table.table for table, _ in newcomers)}")


def to_put_aside(survey: PreflightContext) -> list[str]:
    """Tables without waiting changes that get no more of them, since another table has their name or they have
    another shape."""
    rows = ledger_tables.all_of(survey.ledger)
    left = [row.table for row in rows if row.life.capture == table_life.LEFT and row.life.is_merged]
    done = survey.table_ids.superseded(left)
    waiting = batches.unapplied_counts(survey.ledger, done) if done else {}
    return [table for table in done if table not in waiting]


def put_aside(survey: PreflightContext) -> None:
    """Stop listing tables that get no more changes. Their Delta tables stay as they are, and are listed as put
    aside if the relation is gone. A renamed relation still exists, and the file may name it again. If a relation is
    gone before its new shape was complete, the table that the shape was built next to is put aside too."""
    for table in to_put_aside(survey):
        relation = survey.table_ids.relation_of(TableName.parse(table))
        with survey.ledger.transaction():
            joins.forget(survey.ledger, table)
            if relation is not None and relation.gone_lsn is not None:
                pairs_put_aside.note(survey.ledger, table, relation.name, relation.gone_lsn)
                for shape in successors.given_up(survey.ledger, table):
                    pairs_put_aside.note(survey.ledger, shape.before, relation.name, shape.begun_lsn)
        survey.note("tables", f"Another table has the place of {table} by now: its Delta tables are kept as they are")


def recheck_marked(survey: PreflightContext, matched: Matching) -> None:
    """Clear the mark of tables that were marked for their older rows and are empty now: the stream has brought
    everything else. The fingerprints of the runs show what happened to such a table since its join."""
    tables = {str(survey.table_ids.id_of_table(table)): table for table in matched.tables}
    checks = _EmptyChecks(survey.source, survey.config.bounds.lock_timeout_s)
    rows = [r for r in ledger_tables.all_of(survey.ledger) if r.life.may_be_seen_empty and r.table in tables]
    looks = {row.table: Fingerprint.from_json(row.fingerprint) for row in rows if row.looked_at is not None}
    as_created = _as_created(survey, looks)
    for row in rows:
        if row.join_horizon is None or row.table not in as_created:
            continue
        if checks.is_empty(tables[row.table], row.join_horizon) is True and joins.clear_existing_rows(
            survey.ledger, row.table, make_durable(survey.source)
        ):
            survey.note("tables", f"{tables[row.table].table} was seen empty: it needs no backfill")


def _as_created(survey: PreflightContext, looks: Mapping[str, Fingerprint]) -> set[str]:
    """The tables that still have the files and the schema with which they were created. Also the tables that this
    pipeline lists in its publication, since the stream has none of their changes from before that."""
    in_their_schema = catalog.made_by(survey.source, [look.relation_oid for look in looks.values()])
    return {
        table
        for table, look in looks.items()
        if (survey.config.manage_publication and look.is_listed)
        or (look.is_as_created and look.relation_oid in in_their_schema)
    }


def _always_published(survey: PreflightContext, looks: Mapping[str, Fingerprint]) -> set[str]:
    """The tables that are listed, or that a publication has had since the fingerprints of earlier runs. A first run
    has no such fingerprints, and nothing is staged."""
    rows = ledger_tables.all_of(survey.ledger)
    earlier = [Fingerprint.from_json(row.fingerprint) for row in rows if row.fingerprint is not None]
    return {
        table
        for table, look in looks.items()
        if look.is_listed or not earlier or any(look.is_published_since(one) for one in earlier)
    }


def _in_lake(config: PipelineConfig, table: TableName) -> bool:
    store = Store(config.lake, config.lake_access)
    return lake_folder.has_delta_table(store, layout.current_table(config.pipeline, table))


class _EmptyChecks:
    """Checks tables for rows, one after another. All together take at most CHECKS_S, and wait for locks no longer
    than two of them may. So tables that are locked or slow cost the others nothing."""

    def __init__(self, source: psycopg.Connection[Any], lock_timeout_s: float) -> None:
        self._source = source
        self._lock_timeout_s = lock_timeout_s
        self._lock_left_s = 2 * lock_timeout_s
        self._left_s = float(CHECKS_S)

    def is_empty(self, table: SourceTable, horizon: int) -> bool | None:
        """The result of `is_empty_after_horizon`; None too if the table is locked, slow, hidden by a policy or
        gone, or if no time is left."""
        if self._left_s <= 0:
            return None
        began = time.monotonic()
        try:
            return transaction_visibility.is_empty_after_horizon(
                self._source,
                table.table,
                horizon,
                partitioned=table.partitioned,
                lock_timeout_s=max(SHORTEST_LOCK_TIMEOUT_S, min(self._lock_timeout_s, self._lock_left_s)),
                statement_timeout_s=min(STATEMENT_TIMEOUT_S, self._left_s),
            )
        except psycopg.errors.LockNotAvailable:
            self._lock_left_s -= time.monotonic() - began
            return None
        except psycopg.DatabaseError:
            if self._source.broken:
                raise
            return None
        finally:
            self._left_s -= time.monotonic() - began
