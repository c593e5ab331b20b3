"""Tables of file and publication that come and go -> their joins in the ledger, each judged once.

A table's rows from before its join are in no stream, so it needs a backfill unless it was seen empty by a snapshot
whose xmin is at or above its join horizon. The looks into tables are bounded together: a table that is locked or slow
is taken for one with rows, and costs the others nothing (R6, R9).
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

from tidemark.capture.survey import SHORTEST_LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S, Survey
from tidemark.capture.table_findings import captured_tables
from tidemark.config import PipelineConfig
from tidemark.errors import TimelineNotFollowed
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.ledger import generations, joins
from tidemark.ledger import tables as ledger_tables
from tidemark.ledger.tables import TableRow
from tidemark.names import TableName
from tidemark.source import catalog, publication
from tidemark.source.publication import Matching, Publication, SourceTable
from tidemark.source.wal_messages import make_durable
from tidemark.staging.store import Store
from tidemark.waits import Wait

# In all, for looks into tables that join.
LOOKS_S: Final = 60


def leaving(survey: Survey, matched: Matching, published: Publication | None) -> list[str]:
    """Tables that the ledger takes for captured, and that are no longer in both file and publication."""
    captured = {str(table.table) for table in captured_tables(matched, published)}
    rows = ledger_tables.all_of(survey.ledger)
    return [row.table for row in rows if row.life.is_captured and row.table not in captured]


def joining(
    survey: Survey, matched: Matching, published: Publication | None
) -> list[tuple[SourceTable, TableRow | None]]:
    """Captured tables whose join was not judged yet, with what the ledger knows of them."""
    rows = {row.table: row for row in ledger_tables.all_of(survey.ledger)}
    pairs = [(table, rows.get(str(table.table))) for table in captured_tables(matched, published)]
    return [(table, row) for table, row in pairs if row is None or row.life.awaits_its_join]


def join(
    survey: Survey,
    matched: Matching,
    published: Publication | None,
) -> None:
    """Judge the tables that joined: was each seen empty by a snapshot that saw all the stream lacks?"""
    newcomers = joining(survey, matched, published)
    if not newcomers:
        return
    horizon = publication.join_horizon(survey.source)
    blockers = _await_horizon(survey.source, horizon, survey.config.bounds.lock_timeout_s)
    looks = _Looks(survey.source, survey.config.bounds.lock_timeout_s)
    # Before the tables are looked into: what alters one from here on differs from its fingerprint (R11).
    with publication.lock_bounded(survey.source, survey.config.bounds.lock_timeout_s, "the tables that join"):
        captured = [t for t in catalog.captured_tables(survey.source, survey.config) if t.published]
        prints = catalog.fingerprint(survey.source, survey.config.publication, captured)
    emptied = {str(table.table) for table, _ in newcomers if not blockers and looks.seen_empty(table, horizon) is True}
    # Horizon, publication and looks: what they are judged by must not be lost in a crash behind the judgement.
    seen = make_durable(survey.source)
    opened = generations.current(survey.ledger)
    if opened is not None and seen.timeline < opened.timeline:
        raise TimelineNotFollowed(what="No table joined", timeline=seen.timeline, followed=opened.timeline)
    for table, row in newcomers:
        backfill: tuple[str, str] | None = None
        if row is not None and not row.life.is_captured:
            why = "it was out of the publication for a while; what changed meanwhile is in no stream"
            backfill = (joins.REJOINED, why)
        elif _in_lake(survey.config, table.table):
            backfill = (joins.REJOINED, "its Delta table is older than the ledger's knowledge of it")
        elif blockers:
            why = f"transactions older than its capture are still open: {listed(blockers)}"
            backfill = (joins.EXISTING_ROWS, why)
        elif str(table.table) not in emptied:
            backfill = (joins.EXISTING_ROWS, "it had rows before it was captured")
        table_id = str(table.table)
        if (row is None or row.fingerprint is None) and table_id in prints:
            ledger_tables.keep_fingerprints(survey.ledger, {table_id: prints[table_id].to_json()})
        joins.join(survey.ledger, table_id, horizon, seen, backfill=backfill)
    survey.note("tables", f"Capturing {listed(table.table for table, _ in newcomers)}")


def look_again_at_marked(survey: Survey, matched: Matching) -> None:
    """A table marked for its older rows and seen empty now has none that matter: the stream brought the rest."""
    tables = {str(table.table): table for table in matched.tables}
    looks = _Looks(survey.source, survey.config.bounds.lock_timeout_s)
    for row in ledger_tables.all_of(survey.ledger):
        table = tables.get(row.table)
        if table is None or row.join_horizon is None or not row.life.may_be_seen_empty:
            continue
        if looks.seen_empty(table, row.join_horizon) is True and joins.seen_empty(
            survey.ledger, row.table, make_durable(survey.source)
        ):
            survey.note("tables", f"{table.table} was seen empty: it needs no backfill")


def _in_lake(config: PipelineConfig, table: TableName) -> bool:
    path = f"{layout.current_table(config.pipeline, table)}/_delta_log"
    return bool(Store(config.lake, config.lake_access).list(path))


def _await_horizon(source: psycopg.Connection[Any], horizon: int, seconds: float) -> list[str]:
    """Wait until a new snapshot's xmin reaches the horizon; empty, or who is in the way after `seconds`."""
    wait = Wait(seconds, every_s=0.05)
    while publication.snapshot_xmin(source) < horizon:
        blockers = publication.transactions_in_flight(source) or ["they have just ended"]
        reason = f"transactions that are older than the capture: {listed(blockers)}"
        if not wait.goes_on(lambda reason=reason: reason):  # type: ignore[misc]
            return blockers
    wait.is_over()
    return []


class _Looks:
    """Looks into tables, one after another, that all together take no longer than LOOKS_S, nor wait for locks longer
    than two of them may: tables that somebody holds, or that are slow, cost the others nothing."""

    def __init__(self, source: psycopg.Connection[Any], lock_timeout_s: float) -> None:
        self._source = source
        self._lock_timeout_s = lock_timeout_s
        self._lock_left_s = 2 * lock_timeout_s
        self._left_s = float(LOOKS_S)

    def seen_empty(self, table: SourceTable, horizon: int) -> bool | None:
        """As `publication.seen_empty`; None too where the look was refused: locked, slow, hidden by a policy, gone, or
        no time is left for it."""
        if self._left_s <= 0:
            return None
        began = time.monotonic()
        try:
            return publication.seen_empty(
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
