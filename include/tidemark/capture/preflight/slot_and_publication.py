"""Creates the slot, and creates or changes the publication, as the pipeline file requires (R9).

Each object is recorded in the ledger as the pipeline's own before it is created. A crash in between leaves a harmless
record of an object that does not exist. In the other order, the object would count as somebody else's.

Many tables are added to a publication at once. If PostgreSQL refuses because of one of them, they are added one by one.
A table that is locked, dropped or given away then fails alone, and the others wait for a bounded time (R6).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from tidemark.capture.continuity import ownership
from tidemark.capture.preflight_context import SHORTEST_LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S, PreflightContext
from tidemark.config import PipelineConfig
from tidemark.errors import Move, SlotCreationBlocked, SourceLocked
from tidemark.findings import Finding, listed
from tidemark.ledger import owned_objects
from tidemark.ledger.leases import Lease
from tidemark.names import TableName
from tidemark.postgres import postgres_session
from tidemark.source.catalogue import publication, transaction_visibility
from tidemark.source.catalogue.identifiers import readable
from tidemark.source.catalogue.publication_findings import PublicationWork, publication_work
from tidemark.source.catalogue.source_tables import Matching
from tidemark.source.wal.slot import PLUGIN, read_slot
from tidemark.source.wal.slot_server import at_slot, logging_snapshots
from tidemark.wait_log import logged_wait
from tidemark.wording import duration

log = logging.getLogger(__name__)

_CREATE: Final = "SELECT pg_create_logical_replication_slot(%s, %s)"
_CREATE_FAILOVER: Final = "SELECT pg_create_logical_replication_slot(%s, %s, false, false, true)"


def make_slot(survey: PreflightContext, lease: Lease, conninfo: str) -> bool:
    """Create the slot, after recording it as the pipeline's own. Returns False if another try of this task has just
    created it. Raises SlotUnknown if somebody else has. `conninfo` is that of `create_slot`."""
    named = ownership.owned_object(survey.source, "slot", survey.config.slot)
    first = owned_objects.note(survey.ledger, lease, named, "made")
    try:
        is_new = create_slot(survey.source, survey.config, conninfo)
        if first and not is_new:
            raise ownership.unknown(survey.config, survey.source, read_slot(survey.source, survey.config.slot))
    except Exception:
        # If the session broke, the server may have created the slot nevertheless.
        if first and not survey.source.closed:
            owned_objects.forget(survey.ledger, lease, named)
        raise
    return is_new


def create_slot(source: psycopg.Connection[Any], config: PipelineConfig, conninfo: str) -> bool:
    """Create the slot. Returns False if another session has just created it. Raises SlotCreationBlocked with the
    open transactions. `conninfo` connects a second session to the source, which reads the transactions that the
    first waits for.

    From PostgreSQL 17 on it is a failover slot, which standbys can copy, so that a promotion loses nothing of it.

    PostgreSQL waits until all open transactions have ended; `drain_stall_s` limits that. A cancelled creation leaves no
    slot behind.
    """
    bound_s = config.bounds.drain_stall_s

    def blocking() -> str:
        with postgres_session.connect(conninfo, application_name=config.application_name) as other:
            return listed(transaction_visibility.transactions_in_flight(other)) or "they have just ended"

    there = at_slot(source, config.slot)

    def make(*named: str) -> None:
        if there is source:
            source.execute(_CREATE if source.info.server_version < 170000 else _CREATE_FAILOVER, named)
            return
        # A slot that is created on a standby exists only there.
        there.execute("SELECT set_config('statement_timeout', %s, false)", (f"{bound_s}s",))
        with logging_snapshots(source):
            there.execute(_CREATE, named)

    source.execute("SELECT set_config('statement_timeout', %s, false)", (f"{bound_s}s",))
    # PostgreSQL waits for the transactions' locks, so the lock timeout would end the wait first.
    source.execute("SELECT set_config('lock_timeout', '0', false)")
    try:
        with logged_wait(bound_s, lambda: f'the slot "{config.slot}", which waits for open transactions: {blocking()}'):
            make(config.slot, PLUGIN)
    except psycopg.errors.QueryCanceled as waited:
        blockers = listed(transaction_visibility.transactions_in_flight(source)) or "they have ended by now"
        raise SlotCreationBlocked(slot=config.slot, waited=duration(bound_s), blockers=blockers) from waited
    except psycopg.errors.DuplicateObject:
        return False
    finally:
        source.execute("SELECT set_config('statement_timeout', %s, false)", (f"{STATEMENT_TIMEOUT_S}s",))
        source.execute("SELECT set_config('lock_timeout', %s, false)", (f"{config.bounds.lock_timeout_s}s",))
    return True


def set_up_publication(survey: PreflightContext, lease: Lease, matched: Matching) -> None:
    """Create the publication, or change it as the file requires, after recording it as the pipeline's own."""
    named = ownership.owned_object(survey.source, "publication", survey.config.publication)
    own = owned_objects.is_own(survey.ledger, named)
    published = publication.read(survey.source, survey.config.publication)
    work = publication_work(survey.config, matched, published, survey.facts)
    if published is not None and not own:
        ownership.require_own_publication(survey, work)
        return
    if not (work.create or work.add or work.drop):
        return
    first = owned_objects.note(survey.ledger, lease, named, "made")
    try:
        _change(survey, work)
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        # Another session has just created it: it committed before the statement, or while the statement waited for its
        # end. If the record existed before, it was another try of this task, which the lease does not exclude.
        published = publication.read(survey.source, survey.config.publication)
        work = publication_work(survey.config, matched, published, survey.facts)
        if first:
            owned_objects.forget(survey.ledger, lease, named)
            ownership.require_own_publication(survey, work)
        else:
            _change(survey, work)
    except Exception:
        if first and not survey.source.closed and publication.read(survey.source, survey.config.publication) is None:
            owned_objects.forget(survey.ledger, lease, named)
        raise


def _change(survey: PreflightContext, work: PublicationWork) -> None:
    """Make all changes at once. If PostgreSQL refuses, tables are added one by one, and only the failing ones are
    left out: those that are locked, or were just dropped, altered or given to another owner."""
    name, bound_s = survey.config.publication, survey.config.bounds.lock_timeout_s
    for tables, verb in ((work.create, "Created"), (work.add, "Added")):
        if not tables:
            continue
        statement = (
            publication.create_statement(name, tables, server_version=survey.facts.version)
            if verb == "Created"
            else publication.add_statement(name, tables)
        )
        try:
            role = publication.acting_role(survey.source, name, tables, create=verb == "Created")
            publication.change(survey.source, [statement], lock_timeout_s=bound_s, role=role)
            changed = list(tables)
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            raise
        except (SourceLocked, psycopg.DatabaseError) as refused:
            if survey.source.broken:
                raise
            log.info("The publication's tables are added one by one: %s", type(refused).__name__)
            changed = _add_one_by_one(survey, tables, create=verb == "Created")
        if changed and verb == "Created":
            survey.note("publication", f'Created publication "{name}" for {listed(changed)}')
        elif changed:
            survey.note("publication", f'Added {listed(changed)} to publication "{name}"')
    if work.drop:
        try:
            role = publication.acting_role(survey.source, name, (), create=False)
            statement = publication.drop_statement(name, work.drop)
            publication.change(survey.source, [statement], lock_timeout_s=bound_s, role=role)
        except SourceLocked as locked:
            # Their changes do no harm: tables that the file does not name are skipped.
            survey.findings.append(Finding.of("publication", locked, "warning"))
        else:
            survey.note(
                "publication",
                f'Took {listed(work.drop)} out of publication "{name}", since the file no longer names it',
            )


def _add_one_by_one(survey: PreflightContext, tables: Sequence[TableName], *, create: bool) -> list[TableName]:
    """Add the tables one by one, and return those that could be added. All of them together wait for locks at most
    twice `lock_timeout_s`."""
    name, bound_s = survey.config.publication, survey.config.bounds.lock_timeout_s
    ends_at = time.monotonic() + 2 * bound_s
    if create:
        empty = publication.create_statement(name, (), server_version=survey.facts.version)
        # As the owner of the first table: a publication takes only tables that its owner owns too.
        role = publication.acting_role(survey.source, name, tables[:1], create=True)
        publication.change(survey.source, [empty], lock_timeout_s=bound_s, role=role)
    changed = []
    for table in tables:
        left_s = max(SHORTEST_LOCK_TIMEOUT_S, min(bound_s, ends_at - time.monotonic()))
        try:
            role = publication.acting_role(survey.source, name, [table], create=False)
            publication.change(
                survey.source, [publication.add_statement(name, [table])], lock_timeout_s=left_s, role=role
            )
            changed.append(table)
        except psycopg.errors.DuplicateObject:
            changed.append(table)  # another try of this task was faster
        except SourceLocked as locked:
            happened = f"{table} could not be added to the publication within the lock timeout. Who holds its lock: "
            survey.findings.append(
                Finding.of_tables(
                    "publication",
                    [table],
                    happened + str(locked.facts["blockers"]),
                    "Wait until that transaction ends, or have its owner end it. The next run tries again",
                    bars="joining",
                    move=Move.RETRY,
                )
            )
        except psycopg.DatabaseError as refused:
            if survey.source.broken:
                raise
            state = f"SQLSTATE {refused.sqlstate}, {type(refused).__name__}"
            survey.findings.append(
                Finding.of_tables(
                    "publication",
                    [table],
                    f"PostgreSQL refuses to add {table} to the publication ({state})",
                    f"As its owner run {readable(publication.add_statement(name, [table]))}: the error says why",
                    bars="joining",
                )
            )
    return changed
