"""Everything that must hold before a run, looked at in one go: config, source, ledger, lake, Spark -> `Report`.

    look    ledger schema (migrated) · lake · Spark · server · role · tables · publication · slot
    act     only where no error is found, and in this order, each step found done by the next preflight:
            publication ──► slot ──► generation ──► tables joined

What is wrong with a table is an error of this table alone (R6): it is kept in the ledger, the table is not captured or
leaves, and all of the above is done for the others. Whoever may create a table must not be able to stop the pipeline,
so no statement about several tables may fail, and no wait may grow, for one of them.

A slot older than its publication cannot be decoded, hence the order. A table that joined is judged once: its rows from
before the join are in no stream, so it needs a backfill unless it was seen empty by a snapshot whose xmin is at or
above its join horizon. Preflight runs every few minutes: once all is in place it reads a few catalogue tables, writes
one small file, and changes nothing. R9: it takes no lock that it does not wait for in a bounded way.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from tidemark import postgres_session as source_sessions
from tidemark.capture import ownership
from tidemark.capture.generation import settle
from tidemark.capture.guarding import GuardBook, guard_findings
from tidemark.config import PipelineConfig
from tidemark.errors import (
    LakeUnusable,
    Move,
    PublicationUnknown,
    SlotCreationBlocked,
    SlotInvalidated,
    SlotNotReady,
    SourceLocked,
    TidemarkError,
    TimelineNotFollowed,
)
from tidemark.findings import Finding, Report, listed
from tidemark.formats import layout
from tidemark.ledger import belongings, generations, joins, migrations, pipeline_files, table_errors
from tidemark.ledger import connection as ledger_sessions
from tidemark.ledger import notes as ledger_notes
from tidemark.ledger import tables as ledger_tables
from tidemark.ledger.leases import SLOT, Lease, hold
from tidemark.ledger.table_errors import TableError
from tidemark.ledger.tables import TableRow
from tidemark.names import TableName
from tidemark.schema import guards
from tidemark.source import catalog, column_look, filter_role, inspection, publication
from tidemark.source.identifiers import readable
from tidemark.source.inspection import ServerFacts
from tidemark.source.publication import Matching, Publication, SourceTable
from tidemark.source.publication_findings import (
    PublicationWork,
    publication_findings,
    publication_work,
    work_findings,
)
from tidemark.source.slot import PLUGIN, SlotState, read_server, read_slot, usable
from tidemark.source.wal_messages import make_durable
from tidemark.staging.store import Store
from tidemark.waits import Wait, saying
from tidemark.wording import duration, plural

log = logging.getLogger(__name__)

STATEMENT_TIMEOUT_S: Final = 30
LEASE_WAIT_S: Final = 10
# For tables after the first that were locked; a lock that nobody holds is had in less.
SHORTEST_LOCK_TIMEOUT_S: Final = 0.05
# In all, for looks into tables that join.
LOOKS_S: Final = 60
_DYNAMODB_LOG_STORE: Final = "io.delta.storage.S3DynamoDBLogStore"
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|yarn|k8s://.+|spark://[^\[\]/]+:\d+(,[^\[\]/]+:\d+)*")


def preflight(
    config: PipelineConfig,
    *,
    source: str,
    ledger: str,
    spark_master: str | None = None,
    act: bool = True,
    adopt_slot: bool = False,
    holder: str | None = None,
    only_new_notes: bool = False,
) -> Report:
    """Look at everything, then do what the first run or a changed file needs. Errors are in the report, not raised.

    `adopt_slot`: a person says that slot and publication of the file are this pipeline's, whoever made them.

    `spark_master` is what the Spark hook resolved, None where nobody looked. With `act` false nothing is created,
    changed or recorded, but the ledger's schema is brought up to date all the same. With `only_new_notes` a note
    that the preflight before this one had too is left out: a schedule's runs are not told the same every five minutes.
    """
    started = time.monotonic()
    look = _Look(config, source, ledger, act, adopt_slot, holder or f"preflight/{socket.gethostname()}/{os.getpid()}")
    look.findings += spark_findings(config, spark_master, os.environ)
    look.run("lake", look.lake)
    look.run("ledger", look.ledger_schema)
    look.run("source", look.source)
    if only_new_notes and not look.failed():
        look.run("ledger", look.leave_out_said_notes)
    return Report.of(config.pipeline, config.path, look.findings, time.monotonic() - started)


@dataclass(slots=True)
class _Look:
    """One preflight under way. A step that fails leaves a finding and the other steps go on."""

    config: PipelineConfig
    source_conninfo: str
    ledger_conninfo: str
    act: bool
    adopt_slot: bool
    holder: str
    findings: list[Finding] = field(default_factory=list)
    ledger_ready: bool = False

    def run(self, check: str, step: Callable[[], None]) -> None:
        try:
            step()
        except TidemarkError as known:
            self.findings.append(Finding.of(check, known))
        except psycopg.errors.InsufficientPrivilege as denied:
            message = denied.diag.message_primary or "a right is missing"
            self.findings.append(
                Finding(
                    "error",
                    "rights",
                    f"The {check} refused: {message}",
                    "Grant it: docs/operations.md, Least privilege",
                )
            )
        except psycopg.OperationalError as lost:
            self.findings.append(Finding.of(check, source_sessions.unreachable(lost, check)))

    def failed(self) -> bool:
        return any(f.severity == "error" for f in self.findings)

    def leave_out_said_notes(self) -> None:
        notes = {str(finding) for finding in self.findings if finding.severity == "note"}
        with ledger_sessions.connect(self.ledger_conninfo) as ledger:
            new = ledger_notes.not_said_yet(ledger, self.config.pipeline, notes)
        self.findings = [found for found in self.findings if found.severity != "note" or str(found) in new]

    def note(self, check: str, message: str) -> None:
        self.findings.append(Finding("note", check, message))

    @property
    def settle_s(self) -> int:
        return self.config.bounds.file_settle_s

    # --- looking ------------------------------------------------------------------------------------------------------

    def lake(self) -> None:
        self.findings += log_store_findings(self.config)
        probe(Store(self.config.lake), self.config)

    def ledger_schema(self) -> None:
        migrations.migrate(self.ledger_conninfo)
        self.ledger_ready = True

    def source(self) -> None:
        with source_sessions.connect(
            self.source_conninfo,
            application_name=self.config.application_name,
            lock_timeout_s=self.config.bounds.lock_timeout_s,
            statement_timeout_s=STATEMENT_TIMEOUT_S,
        ) as source:
            self.transport("source", self.config.source_connection, source)
            facts = inspection.read_server_facts(source)
            slot = read_slot(source, self.config.slot)
            self.findings += inspection.server_findings(facts, self.config, slot=slot)
            if facts.major < inspection.OLDEST_VERSION:
                return
            own = self.own_slot(source, slot)
            if slot is not None:
                self.run("slot", lambda: self.slot_state(source, slot, own))
            if not self.ledger_ready:
                self.tables(source, facts, None, frozenset(), ())
                return
            with ledger_sessions.connect(self.ledger_conninfo) as ledger:
                self.transport("ledger", self.config.ledger_connection, ledger)
                self.same_database(source, ledger)
                if self.act:
                    pipeline_files.refuse_superseded(ledger, self.config.pipeline, self.config.digest, self.settle_s)
                rows = ledger_tables.all_of(ledger, self.config.pipeline)
                captured = frozenset(TableName.parse(row.table) for row in rows if row.captured)
                followed = () if facts.standby else self.guarded(source, ledger)
                selected, published = self.tables(source, facts, slot if own else None, captured, followed)
                captured &= _covered(published)
                work = publication_work(self.config, selected, published, facts)
                if published is not None:
                    self.run("publication", lambda: self.own_publication(source, ledger, work))
                if not self.act:
                    self.findings += _intentions(self.config, published, work, slot)
                else:
                    # Before the work, which may end in an error, and after it, which may find more.
                    self.keep_table_errors(ledger, captured)
                    if not self.failed():
                        self.bring_about(source, ledger, facts, selected, published, slot)
                        self.keep_table_errors(ledger, captured)
                self.findings += _backfill_findings(ledger, self.config)

    def tables(
        self,
        source: psycopg.Connection[Any],
        facts: ServerFacts,
        slot: SlotState | None,
        captured: frozenset[TableName],
        followed: Collection[tuple[TableName, str]],
    ) -> tuple[Matching, Publication | None]:
        """What the file names, less the tables with an error that keeps them out; and the publication."""
        found = publication.matching(source, self.config)
        published = publication.read(source, self.config.publication)
        self.findings += inspection.table_findings(found, self.config, facts, followed)
        self.findings += filter_role.findings(source, self.config, found.tables)
        self.findings += publication_findings(self.config, found, published, facts)
        selected = found.without(_barred(self.findings, captured & _covered(published)))
        work = publication_work(self.config, selected, published, facts)
        self.findings += work_findings(self.config, published, work, facts, slot=slot)
        if not (_captured(selected, published) or work.create or work.add):
            # A slot that is there must move on all the same, and the publication is what it is read with.
            self.findings.append(
                Finding(
                    "error" if slot is None else "warning",
                    "tables",
                    "None of the tables that the file names can be captured",
                    "Put right what is said of the tables, or correct `tables`",
                    Move.FIX_CONFIG,
                )
            )
        return selected, published

    def guarded(
        self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any]
    ) -> Collection[tuple[TableName, str]]:
        """The masked and left-out columns that are followed under another name, each said."""
        stored = GuardBook(self.config, ledger, read_server(source)).stored()
        followed, findings = guard_findings(self.config, stored, column_look.look(source, stored))
        self.findings += findings
        return followed

    def look_first(self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any], found: Matching) -> None:
        """Look at the columns of tables with masks before they can be in the stream: what is renamed from here on is
        seen (`capture.guarding`)."""
        book = GuardBook(self.config, ledger, read_server(source))
        stored = book.stored()
        new = [t.relation.oid for t in found.tables if guards.guards(t.rule) and t.relation.oid not in stored]
        now = column_look.look(source, new)
        for oid, (table, rows) in now.tables.items():
            book.bind(oid, table, rows, {})
            book.keep_look(oid, table, now, {})

    def keep_table_errors(self, ledger: psycopg.Connection[Any], captured: frozenset[TableName]) -> None:
        errors: dict[str, list[TableError]] = {}
        for finding in self.findings:
            for table in finding.tables:
                errors.setdefault(str(table), []).append(
                    TableError(finding.check, finding.message, finding.remedy, finding.bars)
                )
        barred = {str(table) for table in _barred(self.findings, captured)}
        table_errors.keep(ledger, self.config.pipeline, errors, barred)

    def own_slot(self, source: psycopg.Connection[Any], slot: SlotState | None) -> bool | None:
        """Whether the slot is this pipeline's; None where it does not exist, or the ledger cannot be asked."""
        if slot is None or not self.ledger_ready:
            return None
        with ledger_sessions.connect(self.ledger_conninfo) as ledger:
            return ownership.is_own_slot(self.config, source, ledger, Store(self.config.lake))

    def slot_state(self, source: psycopg.Connection[Any], slot: SlotState, own: bool | None) -> None:
        """What a slot of another kind is, is said before whose it is; what to do about one's own, after that."""
        try:
            usable(source, slot.name)
        except (SlotInvalidated, SlotNotReady):
            if own is False:
                raise ownership.unknown(self.config, source, slot) from None
            raise
        if own is False and not self.adopt_slot:
            raise ownership.unknown(self.config, source, slot)
        ownership.refuse_other_reader(self.config, source, own=own is not False)
        self.findings += inspection.slot_findings(slot)

    def own_publication(
        self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any], work: PublicationWork
    ) -> None:
        """A publication that is there already and would have to change must be this pipeline's."""
        if not self.config.manage_publication or not (work.add or work.drop) or self.adopt_slot:
            return
        named = ownership.thing(source, "publication", self.config.publication)
        if belongings.is_own(ledger, self.config.pipeline, named):
            return
        changes = [f"{verb} {listed(names)}" for verb, names in (("add", work.add), ("take out", work.drop)) if names]
        raise PublicationUnknown(
            publication=self.config.publication,
            pipeline=self.config.pipeline,
            change=", ".join(changes),
            path=self.config.path or "FILE",
        )

    def transport(self, database: str, connection_id: str, session: psycopg.Connection[Any]) -> None:
        sslmode = source_sessions.unverified(session.info.host, session.info.get_parameters())
        if sslmode is not None:
            self.findings.append(
                Finding(
                    "warning",
                    "tls",
                    f"The {database} at {session.info.host} is reached with sslmode={sslmode}: whoever stands in "
                    "between can read along, or answer in its place",
                    f"Set sslmode to verify-full, and sslrootcert, in connection {connection_id}",
                    Move.FIX_CONFIG,
                )
            )

    def same_database(self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any]) -> None:
        identity = "SELECT system_identifier::text, current_database()::text FROM pg_control_system()"
        if source.execute(identity).fetchone() == ledger.execute(identity).fetchone():
            self.findings.append(
                Finding(
                    "warning",
                    "ledger",
                    "The ledger lies in the source database: its own changes pass through the slot's stream",
                    f"Point connection {self.config.ledger_connection} at another database",
                    Move.FIX_CONFIG,
                )
            )

    # --- acting -------------------------------------------------------------------------------------------------------

    def bring_about(
        self,
        source: psycopg.Connection[Any],
        ledger: psycopg.Connection[Any],
        facts: ServerFacts,
        found: Matching,
        published: Publication | None,
        slot: SlotState | None,
    ) -> None:
        """Publication, slot, generation, tables: whatever is missing, under the lease `slot`, as a drain has it."""
        self.look_again_at_marked(source, ledger, found)
        same_file = pipeline_files.holds(ledger, self.config.pipeline, self.config.digest)
        if slot is not None and same_file and not (self.adopt_slot or self.pending(ledger, facts, found, published)):
            return
        with hold(self.ledger_conninfo, self.config.pipeline, SLOT, self.holder, wait_s=LEASE_WAIT_S) as lease:
            pipeline_files.refuse_superseded(ledger, self.config.pipeline, self.config.digest, self.settle_s)
            # Another preflight may have done all of it meanwhile.
            published = publication.read(source, self.config.publication)
            # A table that left is recorded before it can come back, so that coming back is seen as a join; and before
            # its file holds, since a drain by that file passes it over.
            for left in self.leaving(ledger, found, published):
                joins.leave(ledger, self.config.pipeline, left)
            # Before anything else is done by it: a drain with another file waits from here on.
            pipeline_files.note(ledger, lease, self.config)
            if self.adopt_slot:
                self.adopt(source, ledger, lease)
            self.look_first(source, ledger, found)
            if self.config.manage_publication:
                self.bring_about_publication(source, ledger, lease, facts, found)
            opened = generations.current(ledger, self.config.pipeline)
            slot = read_slot(source, self.config.slot)
            if slot is None and self.make_slot(source, ledger, lease):
                self.note("slot", f'Created slot "{self.config.slot}"')
            if slot is None or opened is None:
                generation = settle(self.config, source, ledger, Store(self.config.lake), lease)
                self.note("generation", f"Generation {generation.number} is open from {generation.start_lsn} on")
            self.join(source, ledger, found, publication.read(source, self.config.publication))

    def adopt(self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any], lease: Lease) -> None:
        """Take slot and publication of the file, where they are there, for this pipeline's own from now on."""
        if read_slot(source, self.config.slot) is not None:
            named = ownership.thing(source, "slot", self.config.slot)
            if not belongings.is_own(ledger, self.config.pipeline, named):
                # Whoever reads it may have come since the look.
                ownership.refuse_other_reader(self.config, source, own=False)
                belongings.note(ledger, lease, named, "adopted")
                self.note("slot", f'Slot "{named.name}" is this pipeline\'s from now on')
        if publication.read(source, self.config.publication) is not None:
            named = ownership.thing(source, "publication", self.config.publication)
            if not belongings.is_own(ledger, self.config.pipeline, named):
                belongings.note(ledger, lease, named, "adopted")
                self.note("publication", f'Publication "{named.name}" is this pipeline\'s from now on')

    def make_slot(self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any], lease: Lease) -> bool:
        """Create the slot, noted as our own before; False where another try of this task just did. Raises SlotUnknown
        where it was somebody else."""
        named = ownership.thing(source, "slot", self.config.slot)
        first = belongings.note(ledger, lease, named, "made")
        try:
            made = create_slot(source, self.config, self.source_conninfo)
            if first and not made:
                raise ownership.unknown(self.config, source, read_slot(source, self.config.slot))
        except Exception:
            # Over a session that broke, the server may have made it all the same.
            if first and not source.closed:
                belongings.forget(ledger, lease, named)
            raise
        return made

    def bring_about_publication(
        self,
        source: psycopg.Connection[Any],
        ledger: psycopg.Connection[Any],
        lease: Lease,
        facts: ServerFacts,
        found: Matching,
    ) -> None:
        """Create or change it where it is not what the file says, noted as our own before."""
        named = ownership.thing(source, "publication", self.config.publication)
        own = belongings.is_own(ledger, self.config.pipeline, named)
        published = publication.read(source, self.config.publication)
        work = publication_work(self.config, found, published, facts)
        if published is not None and not own:
            self.own_publication(source, ledger, work)
            return
        if not (work.create or work.add or work.drop):
            return
        first = belongings.note(ledger, lease, named, "made")
        try:
            self.publication(source, facts, work)
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            # Somebody created it just now: committed before our look at the name, or while our statement waited for
            # its transaction's end. Where the note was there, it was another try of this task, which the lease does
            # not keep out.
            published = publication.read(source, self.config.publication)
            work = publication_work(self.config, found, published, facts)
            if first:
                belongings.forget(ledger, lease, named)
                self.own_publication(source, ledger, work)
            else:
                self.publication(source, facts, work)
        except Exception:
            if first and not source.closed and publication.read(source, self.config.publication) is None:
                belongings.forget(ledger, lease, named)
            raise

    def pending(
        self,
        ledger: psycopg.Connection[Any],
        facts: ServerFacts,
        found: Matching,
        published: Publication | None,
    ) -> bool:
        """Whether there is anything to do but for the slot."""
        work = publication_work(self.config, found, published, facts)
        return bool(
            (self.config.manage_publication and (work.create or work.add or work.drop))
            or generations.current(ledger, self.config.pipeline) is None
            or self.leaving(ledger, found, published)
            or self.joining(ledger, found, published)
        )

    def publication(self, source: psycopg.Connection[Any], facts: ServerFacts, work: PublicationWork) -> None:
        """All at once; where PostgreSQL refuses that because of some table, one by one, and only that table is left
        out: somebody holds a lock on it, or it was dropped, altered or given away just now."""
        name, bound_s = self.config.publication, self.config.bounds.lock_timeout_s
        for tables, verb in ((work.create, "Created"), (work.add, "Added")):
            if not tables:
                continue
            statement = (
                publication.create_statement(name, tables, server_version=facts.version, generated=True)
                if verb == "Created"
                else publication.add_statement(name, tables)
            )
            try:
                role = publication.acting_role(source, name, tables, create=verb == "Created")
                publication.change(source, [statement], lock_timeout_s=bound_s, role=role)
                done = list(tables)
            except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                raise
            except (SourceLocked, psycopg.DatabaseError) as refused:
                if source.broken:
                    raise
                log.info("The publication's tables are added one by one: %s", type(refused).__name__)
                done = self.one_by_one(source, facts, tables, create=verb == "Created")
            if done and verb == "Created":
                self.note("publication", f'Created publication "{name}" for {listed(done)}')
            elif done:
                self.note("publication", f'Added {listed(done)} to publication "{name}"')
        if work.drop:
            try:
                role = publication.acting_role(source, name, (), create=False)
                statement = publication.drop_statement(name, work.drop)
                publication.change(source, [statement], lock_timeout_s=bound_s, role=role)
            except SourceLocked as locked:
                # They are in nobody's way: what the file does not name is skipped.
                self.findings.append(Finding.of("publication", locked, "warning"))
            else:
                self.note(
                    "publication",
                    f'Took {listed(work.drop)} out of publication "{name}", since the file no longer names it',
                )

    def one_by_one(
        self, source: psycopg.Connection[Any], facts: ServerFacts, tables: Sequence[TableName], *, create: bool
    ) -> list[TableName]:
        """Those of the tables that could be added. All together wait for locks as long as two statements may."""
        name, bound_s = self.config.publication, self.config.bounds.lock_timeout_s
        ends_at = time.monotonic() + 2 * bound_s
        if create:
            empty = publication.create_statement(name, (), server_version=facts.version, generated=True)
            # As the owner of the first: what is one's own takes no table of another's.
            role = publication.acting_role(source, name, tables[:1], create=True)
            publication.change(source, [empty], lock_timeout_s=bound_s, role=role)
        done = []
        for table in tables:
            left_s = max(SHORTEST_LOCK_TIMEOUT_S, min(bound_s, ends_at - time.monotonic()))
            try:
                role = publication.acting_role(source, name, [table], create=False)
                publication.change(source, [publication.add_statement(name, [table])], lock_timeout_s=left_s, role=role)
                done.append(table)
            except psycopg.errors.DuplicateObject:
                done.append(table)  # another try of this task was faster
            except SourceLocked as locked:
                happened = f"{table} could not be added to the publication now, somebody holds it: "
                self.findings.append(
                    Finding.of_tables(
                        "publication",
                        [table],
                        happened + str(locked.facts["blockers"]),
                        "Wait until that transaction ends, or have its owner end it; the next run tries again",
                        bars="joining",
                        move=Move.RETRY,
                    )
                )
            except psycopg.DatabaseError as refused:
                if source.broken:
                    raise
                state = f"SQLSTATE {refused.sqlstate}, {type(refused).__name__}"
                self.findings.append(
                    Finding.of_tables(
                        "publication",
                        [table],
                        f"PostgreSQL refuses to add {table} to the publication ({state})",
                        f"Look at the table, or as its owner run: {readable(publication.add_statement(name, [table]))}",
                        bars="joining",
                    )
                )
        return done

    def leaving(self, ledger: psycopg.Connection[Any], found: Matching, published: Publication | None) -> list[str]:
        """Tables that the ledger takes for captured, and that are no longer in both file and publication."""
        captured = {str(table.table) for table in _captured(found, published)}
        rows = ledger_tables.all_of(ledger, self.config.pipeline)
        return [row.table for row in rows if row.captured and row.table not in captured]

    def joining(
        self, ledger: psycopg.Connection[Any], found: Matching, published: Publication | None
    ) -> list[tuple[SourceTable, TableRow | None]]:
        """Captured tables whose join was not judged yet, with what the ledger knows of them."""
        known = {row.table: row for row in ledger_tables.all_of(ledger, self.config.pipeline)}
        pairs = [(table, known.get(str(table.table))) for table in _captured(found, published)]
        return [(table, row) for table, row in pairs if row is None or not row.captured or row.join_horizon is None]

    def join(
        self,
        source: psycopg.Connection[Any],
        ledger: psycopg.Connection[Any],
        found: Matching,
        published: Publication | None,
    ) -> None:
        """Judge the tables that joined: was each seen empty by a snapshot that saw all the stream lacks?"""
        joining = self.joining(ledger, found, published)
        if not joining:
            return
        horizon = publication.join_horizon(source)
        blockers = _await_horizon(source, horizon, self.config.bounds.lock_timeout_s)
        looks = _Looks(source, self.config.bounds.lock_timeout_s)
        # Before the tables are looked into: what alters one from here on differs from its fingerprint (R11).
        with publication.lock_bounded(source, self.config.bounds.lock_timeout_s, "the tables that join"):
            captured = [t for t in catalog.captured_tables(source, self.config) if t.published]
            prints = catalog.fingerprint(source, self.config.publication, captured)
        emptied = {
            str(table.table) for table, _ in joining if not blockers and looks.seen_empty(table, horizon) is True
        }
        # Horizon, publication and looks: what they are judged by must not be lost in a crash behind the judgement.
        seen = make_durable(source)
        opened = generations.current(ledger, self.config.pipeline)
        if opened is not None and seen.timeline < opened.timeline:
            raise TimelineNotFollowed(what="No table joined", found=seen.timeline, followed=opened.timeline)
        for table, row in joining:
            backfill: tuple[str, str] | None = None
            if row is not None and not row.captured:
                why = "it was out of the publication for a while; what changed meanwhile is in no stream"
                backfill = (joins.REJOINED, why)
            elif self.in_lake(table.table):
                backfill = (joins.REJOINED, "its Delta table is older than the ledger's knowledge of it")
            elif blockers:
                why = f"transactions older than its capture are still open: {listed(blockers)}"
                backfill = (joins.EXISTING_ROWS, why)
            elif str(table.table) not in emptied:
                backfill = (joins.EXISTING_ROWS, "it had rows before it was captured")
            table_id = str(table.table)
            if (row is None or row.fingerprint is None) and table_id in prints:
                ledger_tables.keep_fingerprint(ledger, self.config.pipeline, table_id, prints[table_id].to_json())
            joins.join(ledger, self.config.pipeline, table_id, horizon, seen, backfill=backfill)
        self.note("tables", f"Capturing {listed(table.table for table, _ in joining)}")

    def look_again_at_marked(
        self, source: psycopg.Connection[Any], ledger: psycopg.Connection[Any], found: Matching
    ) -> None:
        """A table marked for its older rows and seen empty now has none that matter: the stream brought the rest."""
        tables = {str(table.table): table for table in found.tables}
        looks = _Looks(source, self.config.bounds.lock_timeout_s)
        for row in ledger_tables.all_of(ledger, self.config.pipeline):
            table = tables.get(row.table)
            if (
                table is None
                or not row.captured
                or row.backfill_kind != joins.EXISTING_ROWS
                or row.join_horizon is None
            ):
                continue
            if looks.seen_empty(table, row.join_horizon) is True and joins.seen_empty(
                ledger, self.config.pipeline, row.table, make_durable(source)
            ):
                self.note("tables", f"{table.table} was seen empty: it needs no backfill")

    def in_lake(self, table: TableName) -> bool:
        path = f"{layout.current_table(self.config.pipeline, table)}/_delta_log"
        return bool(Store(self.config.lake).list(path))


# --- the slot ---------------------------------------------------------------------------------------------------------


def create_slot(source: psycopg.Connection[Any], config: PipelineConfig, conninfo: str) -> bool:
    """Create the slot; False where somebody else just did. Raises SlotCreationBlocked, naming the open transactions.
    `conninfo` leads to the source too: while the one session waits, another says for whom.

    PostgreSQL waits until all transactions that were open have ended; `drain_stall_s` bounds it. A cancelled creation
    leaves no slot behind.
    """
    bound_s = config.bounds.drain_stall_s

    def blocking() -> str:
        with source_sessions.connect(conninfo, application_name=config.application_name) as other:
            return listed(publication.transactions_in_flight(other)) or "they have just ended"

    source.execute("SELECT set_config('statement_timeout', %s, false)", (f"{bound_s}s",))
    # The wait is one for the transactions' locks, so the lock timeout would end it first.
    source.execute("SELECT set_config('lock_timeout', '0', false)")
    try:
        with saying(bound_s, lambda: f'the slot "{config.slot}", which waits for open transactions: {blocking()}'):
            source.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (config.slot, PLUGIN))
    except psycopg.errors.QueryCanceled as waited:
        blockers = listed(publication.transactions_in_flight(source)) or "they have ended by now"
        raise SlotCreationBlocked(slot=config.slot, waited=duration(bound_s), blockers=blockers) from waited
    except psycopg.errors.DuplicateObject:
        return False
    finally:
        source.execute("SELECT set_config('statement_timeout', %s, false)", (f"{STATEMENT_TIMEOUT_S}s",))
        source.execute("SELECT set_config('lock_timeout', %s, false)", (f"{config.bounds.lock_timeout_s}s",))
    return True


# --- tables that join -------------------------------------------------------------------------------------------------


def _barred(findings: Iterable[Finding], captured: frozenset[TableName]) -> frozenset[TableName]:
    """The tables that their errors keep out, of which some may only keep out what is not in yet."""
    errors = [finding for finding in findings if finding.severity == "table"]
    always = {table for finding in errors if finding.bars == "capture" for table in finding.tables}
    joining = {table for finding in errors if finding.bars == "joining" for table in finding.tables}
    return frozenset(always | (joining - captured))


def _covered(published: Publication | None) -> frozenset[TableName]:
    return frozenset() if published is None else published.covered


def _captured(found: Matching, published: Publication | None) -> list[SourceTable]:
    return [] if published is None else [table for table in found.tables if table.table in published.covered]


def _await_horizon(source: psycopg.Connection[Any], horizon: int, seconds: float) -> list[str]:
    """Wait until a new snapshot's xmin reaches the horizon; empty, or who is in the way after `seconds`."""
    wait = Wait(seconds, every_s=0.05)
    while publication.snapshot_xmin(source) < horizon:
        blockers = publication.transactions_in_flight(source) or ["they have just ended"]
        said = f"transactions that are older than the capture: {listed(blockers)}"
        if not wait.goes_on(lambda said=said: said):  # type: ignore[misc]
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


def _backfill_findings(ledger: psycopg.Connection[Any], config: PipelineConfig) -> Iterator[Finding]:
    reasons: dict[str, list[str]] = {}
    for row in ledger_tables.all_of(ledger, config.pipeline):
        if row.captured and row.needs_backfill:
            reasons.setdefault(row.backfill_reason or "", []).append(row.table)
    for reason, names in reasons.items():
        yield Finding(
            "warning",
            "backfill",
            f"{listed(names)} {plural(len(names), 'needs')} a backfill{':' if len(names) == 1 else ', each because'} "
            f"{reason}",
            f"Until then current lacks those rows; start a backfill of {'it' if len(names) == 1 else 'them'}",
            Move.BACKFILL,
        )


def _intentions(
    config: PipelineConfig, published: Publication | None, work: PublicationWork, slot: SlotState | None
) -> Iterator[Finding]:
    if config.manage_publication and published is None:
        yield Finding(
            "note", "publication", f'Would create publication "{config.publication}" for {listed(work.create)}'
        )
    if config.manage_publication and work.add:
        yield Finding("note", "publication", f'Would add {listed(work.add)} to publication "{config.publication}"')
    if config.manage_publication and work.drop:
        yield Finding(
            "note", "publication", f'Would take {listed(work.drop)} out of publication "{config.publication}"'
        )
    if slot is None:
        yield Finding("note", "slot", f'Would create slot "{config.slot}"')


# --- lake and Spark ---------------------------------------------------------------------------------------------------


def probe(store: Store, config: PipelineConfig) -> None:
    """Write a small file below the lake root, read it back, delete it. Raises LakeUnusable."""
    path, content = f"{config.pipeline}/.preflight-{uuid4().hex}", b"tidemark"
    try:
        store.write_atomic(path, content)
        read = store.read(path)
        store.delete(path)
    except Exception as failed:  # each object store has its own exceptions; all of them mean the same here
        raise LakeUnusable(lake=config.lake, detail=_words(failed)) from None
    if read != content:
        raise LakeUnusable(lake=config.lake, detail="a file read back differs from what was written")


# What an address may carry of a secret: the user's name and password, and the signature of a query.
_SECRET_OF_A_URI: Final = re.compile(r"(?<=://)[^/@\s]*@|\?\S+")


def _words(failed: Exception) -> str:
    """What a store says of a file that holds no row, without credentials that it says its address with."""
    return f"{type(failed).__name__}: {_SECRET_OF_A_URI.sub('', str(failed))}"


def log_store_findings(config: PipelineConfig) -> Iterator[Finding]:
    """Whether Delta's log store for this scheme can put if absent; without it two drivers
    would overwrite each other (R5)."""
    scheme = urlsplit(config.lake).scheme
    if scheme in ("s3", "s3a", "s3n"):
        option = f"spark.delta.logStore.{scheme}.impl"
        if config.spark_conf.get(option) != _DYNAMODB_LOG_STORE:
            yield Finding(
                "error",
                "log_store",
                f"Delta's log store for {scheme}:// cannot put a file only if it is absent: a second Spark driver "
                "would overwrite the commits of the first",
                f"Set spark.conf {option}: {_DYNAMODB_LOG_STORE} in the pipeline file, with its jar "
                "(delta-storage-s3-dynamodb) and a DynamoDB table",
                Move.FIX_CONFIG,
            )
        if scheme == "s3":
            yield Finding(
                "warning",
                "log_store",
                "Hadoop knows s3:// only on Amazon EMR",
                "Write the lake root with s3a://, which fsspec and Hadoop both know",
                Move.FIX_CONFIG,
            )
    elif scheme not in ("", "file", "gs", "abfs", "abfss", "hdfs", "oss"):
        yield Finding(
            "warning",
            "log_store",
            f"Nobody tried a lake on {scheme}://; Delta needs a log store that puts a file only if it is absent",
            "Use a local path, hdfs://, gs://, abfss:// or s3a:// with the DynamoDB log store",
            Move.FIX_CONFIG,
        )


def spark_findings(config: PipelineConfig, master: str | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """The master as the Spark hook resolved it. A missing or badly written connection silently resolves to "yarn"."""
    connection = config.spark_connection
    remedy = (
        f'Write connection {connection} as JSON, for example {{"conn_type": "spark", "host": "local[*]", '
        '"extra": {"deploy-mode": "client"}}'
    )
    if master is None:
        return
    if master == "yarn" and not (environment.get("HADOOP_CONF_DIR") or environment.get("YARN_CONF_DIR")):
        yield Finding(
            "error",
            "spark",
            f"Connection {connection} resolves to --master yarn, as a missing or unreadable connection does, and "
            "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
            remedy,
            Move.FIX_CONFIG,
        )
    elif _MASTER.fullmatch(master) is None:
        yield Finding(
            "error",
            "spark",
            f"Connection {connection} resolves to --master {master}, which Spark does not know",
            remedy,
            Move.FIX_CONFIG,
        )
    elif not master.startswith("local") and urlsplit(config.lake).scheme in ("", "file"):
        yield Finding(
            "warning",
            "spark",
            f"The lake {config.lake} is a local path, and Spark runs on {master}: every executor must see the same "
            "folder",
            "Use an object store, or a file system that all of them mount",
            Move.FIX_CONFIG,
        )
