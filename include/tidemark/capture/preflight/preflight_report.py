"""Checks everything that a run needs (config, source, ledger, lake, Spark), then sets up the source -> `Report`.

    check   ledger schema (migrated) · lake · Spark · server · role · tables · publication · slot
    act     only without errors, in this order; the next preflight detects each step as done:
            publication ──► slot ──► generation ──► tables joined

Each step has a module of its own: `lake_findings`, `airflow_findings`, `spark_findings`, `table_findings` (errors of
one table alone), `source.catalogue.inspection` (server, role, tables, slot), `ownership` (the owner of slot and
publication), `slot_and_publication`, `generation`, `table_joins`. This module has the order of the steps, the
conditions that stop everything, and the report.

A slot older than its publication cannot be decoded, which gives the order. Preflight runs every few minutes. Once
everything is in place it reads a few catalogue tables, writes one small file, and changes nothing. It waits for no lock
without a bound (R9).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import psycopg

from tidemark.capture import lake_folder
from tidemark.capture.continuity import ownership
from tidemark.capture.continuity.generation import settle
from tidemark.capture.continuity.recovery import list_staging
from tidemark.capture.definitions.column_guarding import LedgerGuards, guard_findings, record_first_columns
from tidemark.capture.preflight import table_findings
from tidemark.capture.preflight.airflow_findings import this_installation
from tidemark.capture.preflight.lake_findings import bucket_findings, log_store_findings, probe
from tidemark.capture.preflight.slot_and_publication import make_slot, set_up_publication
from tidemark.capture.preflight.spark_findings import spark_findings
from tidemark.capture.preflight.table_findings import NO_TABLE_YET, KnownTables
from tidemark.capture.preflight.table_joins import (
    begun_in_stream,
    join,
    joining,
    leaving,
    put_aside,
    recheck_marked,
    to_put_aside,
)
from tidemark.capture.preflight_context import STATEMENT_TIMEOUT_S, PreflightContext
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.errors import Move, SlotInvalidated, SlotNotReady, StagingMissing, TidemarkError
from tidemark.findings import Finding, Report, listed
from tidemark.formats import layout
from tidemark.ledger import migrations, pipeline_files
from tidemark.ledger.captured import joins
from tidemark.ledger.captured import tables as ledger_tables
from tidemark.ledger.connection import Ledger, connect, open_ledger
from tidemark.ledger.leases import SLOT, Lease, hold
from tidemark.ledger.observations import preflight_notes as ledger_notes
from tidemark.ledger.staged import generations
from tidemark.ledger.staged.generations import Generation
from tidemark.names import TableName
from tidemark.postgres import postgres_session
from tidemark.run import Run
from tidemark.source import event_trigger
from tidemark.source.catalogue import column_names, inspection, publication
from tidemark.source.catalogue.publication import Publication
from tidemark.source.catalogue.publication_findings import PublicationWork, publication_work
from tidemark.source.catalogue.source_tables import Matching
from tidemark.source.wal.slot import SlotState, read_server, read_slot, usable
from tidemark.source.wal.slot_server import at_slot, is_beside, system_identifier
from tidemark.source.wal.standby_findings import standby_findings
from tidemark.spark_submit.spark_connection import SparkConnection
from tidemark.spark_submit.spark_defaults import spark_defaults
from tidemark.staging import staged_folders
from tidemark.storage.store import Store

LEASE_WAIT_S: Final = 10

# `adopt_slot`: slot and publication of the file are this pipeline's, whoever created them. `staging_is_lost`: the lake
# is the right one, and lacks its staging for good (`lake_folder`). `ledger_stays`: without `act` not even an empty
# ledger database gets its schema.
Word = Literal["adopt_slot", "staging_is_lost", "ledger_stays"]


def preflight(
    run: Run,
    *,
    spark: SparkConnection | None = None,
    jars: str | None = None,
    act: bool = True,
    says: Collection[Word] = (),
    only_new_notes: bool = False,
) -> Report:
    """Check everything, then make the changes that the first run or a changed file needs. Errors are in the report,
    not raised.

    - `says` are the facts that a person confirmed (`Word`).
    - `spark` is the connection as the Spark hook resolves it.
    - `jars` are the jars that spark-submit would get, None if they were not determined.
    - With `act` false nothing is created, changed or recorded, except that a ledger database without a schema gets it.
    - With `only_new_notes` a note that the previous preflight had too is left out, so that scheduled runs do not repeat
      it every five minutes.
    """
    started = time.monotonic()
    steps = _PreflightRun(run, act, "ledger_stays" not in says, "adopt_slot" in says, "staging_is_lost" in says)
    steps.findings += this_installation()
    steps.findings += spark_findings(run.config, spark, os.environ, jars)
    steps.run("lake", steps.lake)
    steps.run("ledger", steps.ledger_schema)
    steps.run("source", steps.source)
    if only_new_notes and not steps.failed():
        steps.run("ledger", steps.leave_out_known_notes)
    return Report.of(run.pipeline, run.config.path, steps.findings, time.monotonic() - started)


@dataclass(slots=True)
class _PreflightRun:
    """One preflight in progress. A step that fails leaves a finding, and the other steps continue."""

    about: Run
    act: bool
    migrates: bool
    adopt_slot: bool
    staging_is_lost: bool
    findings: list[Finding] = field(default_factory=list)
    ledger_ready: bool = False

    @property
    def config(self) -> PipelineConfig:
        return self.about.config

    def run(self, check: str, step: Callable[[], None]) -> None:
        try:
            step()
        except TidemarkError as error:
            self.findings.append(Finding.of(check, error))
        except psycopg.errors.InsufficientPrivilege as denied:
            message = denied.diag.message_primary or "a right is missing"
            self.findings.append(
                Finding.error(
                    "rights",
                    f"The {check} refused: {message}",
                    "Grant the missing right: docs/operations.md, Least privilege, lists them",
                )
            )
        except psycopg.OperationalError as lost:
            self.findings.append(Finding.of(check, postgres_session.unreachable(lost, check)))

    def failed(self) -> bool:
        return any(f.severity == "error" for f in self.findings)

    def leave_out_known_notes(self) -> None:
        notes = {str(finding) for finding in self.findings if finding.severity == "note"}
        with open_ledger(self.about.ledger, self.config.pipeline) as ledger:
            new = ledger_notes.new_notes(ledger, notes)
        self.findings = [finding for finding in self.findings if finding.severity != "note" or str(finding) in new]

    @property
    def settle_s(self) -> int:
        return self.config.bounds.file_settle_s

    # --- checks -------------------------------------------------------------------------------------------------------

    def lake(self) -> None:
        self.findings += log_store_findings(self.config, spark_defaults(os.environ))
        store = Store(self.config.lake, self.config.lake_access)
        if store.is_bucket:
            self.findings += bucket_findings(store, self.config)
        else:
            probe(store, self.config)

    def ledger_schema(self) -> None:
        with connect(self.about.ledger) as connection:
            wanted = migrations.pending(connection)
        # Without `act` a ledger in use is not migrated: then it would refuse every task of the older version.
        if wanted.is_needed and not self.act and (wanted.before is not None or not self.migrates):
            self.note("ledger", f"Would bring the ledger's schema from {wanted.origin} to version {wanted.after}")
            return
        if wanted.is_needed:
            migration = migrations.migrate(self.about.ledger)
            if migration.is_needed and migration.before is not None:
                self.note("ledger", f"Brought the ledger's schema from {migration.origin} to version {migration.after}")
        self.ledger_ready = True

    def note(self, check: str, message: str) -> None:
        self.findings.append(Finding.note(check, message))

    def source(self) -> None:
        with postgres_session.connect(
            self.about.source,
            application_name=self.config.application_name,
            lock_timeout_s=self.config.bounds.lock_timeout_s,
            statement_timeout_s=STATEMENT_TIMEOUT_S,
        ) as source:
            postgres_session.require_own_process(source, "source")
            self.transport("source", self.config.source_connection, source)
            facts = inspection.read_server_facts(source)
            if is_beside(source, self.config.slot):
                beside = at_slot(source, self.config.slot)
                self.findings += standby_findings(beside, self.config.source_connection, self.config.slot)
            slot = read_slot(source, self.config.slot)
            self.findings += inspection.server_findings(facts, self.config, slot=slot)
            if facts.major < inspection.OLDEST_VERSION:
                return
            created_by = facts.service.provider.trigger_by if facts.service else "a superuser"
            self.findings += event_trigger.trigger_findings(source, self.config, created_by)
            with open_ledger(self.about.ledger, self.config.pipeline) if self.ledger_ready else nullcontext() as ledger:
                own = self.own_slot(source, ledger, slot)
                if slot is not None:
                    self.run("slot", lambda: self.slot_state(source, slot, own))
                if ledger is None:
                    table_findings.select(source, self.config, facts, self.findings, slot=None, in_ledger=KnownTables())
                    return
                postgres_session.require_own_process(ledger.connection, "ledger")
                self.transport("ledger", self.config.ledger_connection, ledger.connection)
                self.same_database(source, ledger)
                table_ids = TableIds(self.config, ledger, system_identifier(source), records=self.act)
                table_ids.record_names(source)
                survey = PreflightContext(self.config, source, ledger, facts, self.adopt_slot, self.findings, table_ids)
                self.compare(survey, slot if own else None, slot)

    def require_own_folder(self, source: psycopg.Connection[Any], opened: Generation | None) -> None:
        """Raises the errors of the lake's folder. It is called before a slot is created, since the slot would keep
        WAL for a drain that never comes. If a generation is open, only the drain looks for newer ones, because it
        lists the folder anyway."""
        store = Store(self.config.lake, self.config.lake_access)
        if opened is None:
            numbers = staged_folders.generations(store, self.config.pipeline)
            lake_folder.refuse_another(self.config, source, store, numbers, None, accepts=self.adopt_slot)
            return
        try:
            lake_folder.require(self.config, store, opened)
        except StagingMissing:
            if not self.staging_is_lost:
                raise
            if not self.act:
                self.note("lake", f"Would write {layout.generation_file(self.config.pipeline, opened.number)} again")

    def compare(self, survey: PreflightContext, own_slot: SlotState | None, slot: SlotState | None) -> None:
        """Compare the file with source and ledger; then make the missing changes, or report them as findings."""
        source, ledger = survey.source, survey.ledger
        if self.act:
            pipeline_files.refuse_superseded(ledger, self.config.digest, self.settle_s)
        if not self.failed():
            self.run("lake", lambda: self.require_own_folder(source, generations.current(ledger)))
        rows = ledger_tables.all_of(ledger)
        captured = frozenset(
            survey.table_ids.name_of(TableName.parse(row.table)) for row in rows if row.life.is_captured
        )
        followed = () if survey.facts.standby else self.guarded(source, ledger)
        selected, published = table_findings.select(
            source, self.config, survey.facts, self.findings, slot=own_slot, in_ledger=KnownTables(captured, followed)
        )
        captured &= table_findings.covered(published)
        work = publication_work(self.config, selected, published, survey.facts)
        if published is not None:
            self.run("publication", lambda: ownership.require_own_publication(survey, work))
        waits = any(finding.check == NO_TABLE_YET for finding in self.findings)
        if not self.act and not waits:
            self.findings += _intentions(self.config, published, work, slot)
        elif self.act:
            # Errors are kept before the changes, which may fail, and after them, since they may add findings.
            table_findings.keep(survey, captured)
            if not self.failed() and not waits:
                self.set_up_source(survey, selected, published, slot)
                table_findings.keep(survey, captured)
        self.findings += table_findings.backfill_findings(ledger, self.config)

    def guarded(self, source: psycopg.Connection[Any], ledger: Ledger) -> Collection[tuple[TableName, str]]:
        """The masked and left-out columns that are followed under another name. Each becomes a finding."""
        stored = LedgerGuards(self.config, ledger, read_server(source)).stored()
        followed, findings = guard_findings(self.config, stored, column_names.read(source, stored))
        self.findings += findings
        return followed

    def own_slot(self, source: psycopg.Connection[Any], ledger: Ledger | None, slot: SlotState | None) -> bool | None:
        """Whether the slot is this pipeline's; None if it does not exist, or the ledger is not ready."""
        if slot is None or ledger is None:
            return None
        return ownership.is_own_slot(self.config, source, ledger, Store(self.config.lake, self.config.lake_access))

    def slot_state(self, source: psycopg.Connection[Any], slot: SlotState, own: bool | None) -> None:
        """Check the slot. A wrong kind of slot is reported before a wrong owner. The remedies for an invalid slot
        are for the pipeline's own only."""
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

    def transport(self, database: str, connection_id: str, session: psycopg.Connection[Any]) -> None:
        sslmode = postgres_session.unverified(session.info.host, session.info.get_parameters())
        if sslmode is not None:
            self.findings.append(
                Finding.warning(
                    "tls",
                    f"The {database} at {session.info.host} is reached with sslmode={sslmode}: somebody on the network "
                    "can read the connection, or pose as the server",
                    f"Set sslmode to verify-full, and sslrootcert, in connection {connection_id}",
                    Move.FIX_CONFIG,
                )
            )

    def same_database(self, source: psycopg.Connection[Any], ledger: Ledger) -> None:
        identity = "SELECT system_identifier::text, current_database()::text FROM pg_control_system()"
        if source.execute(identity).fetchone() == ledger.execute(identity).fetchone():
            self.findings.append(
                Finding.warning(
                    "ledger",
                    "The ledger lies in the source database: its own changes pass through the slot's stream",
                    f"Point connection {self.config.ledger_connection} at another database",
                    Move.FIX_CONFIG,
                )
            )

    # --- changes ------------------------------------------------------------------------------------------------------

    def set_up_source(
        self, survey: PreflightContext, selected: Matching, published: Publication | None, slot: SlotState | None
    ) -> None:
        """Create the missing publication, slot and generation, and join the tables, under the lease `slot` that a
        drain takes too."""
        source, ledger, pipeline = survey.source, survey.ledger, self.config.pipeline
        recheck_marked(survey, selected)
        same_file = pipeline_files.is_in_force(ledger, self.config.digest)
        by_hand = self.adopt_slot or self.staging_is_lost
        if slot is not None and same_file and not (by_hand or _pending(survey, selected, published)):
            return
        with hold(self.about.ledger, pipeline, SLOT, self.about.holder, wait_s=LEASE_WAIT_S) as lease:
            pipeline_files.refuse_superseded(ledger, self.config.digest, self.settle_s)
            survey.table_ids.read_again()
            # Another preflight may have made all changes meanwhile.
            published = publication.read(source, self.config.publication)
            # A table's leaving is recorded before the table can come back, so that its return counts as a join. It is
            # also recorded before the new file is in force, since a drain with that file skips the table.
            begun = begun_in_stream(survey, selected, published)
            for left in leaving(survey, selected, published):
                joins.leave(ledger, left)
            put_aside(survey)
            # The file is recorded before any change that it requires: from here on a drain with another file waits.
            pipeline_files.note(ledger, lease, self.config)
            if self.staging_is_lost:
                self.restore_staging(survey, lease)
            if self.adopt_slot:
                for one in ownership.adopt(self.config, source, ledger, lease):
                    survey.note(one.kind, f'{one.kind.capitalize()} "{one.name}" is this pipeline\'s from now on')
            record_first_columns(LedgerGuards(self.config, ledger, read_server(source)), source, selected)
            if self.config.manage_publication:
                set_up_publication(survey, lease, selected)
            opened = generations.current(ledger)
            slot = read_slot(source, self.config.slot)
            if slot is None and make_slot(survey, lease, self.about.source):
                survey.note("slot", f'Created slot "{self.config.slot}"')
            if slot is None or opened is None or by_hand:
                folders = list_staging(ledger, Store(self.config.lake, self.config.lake_access))
                generation = settle(self.config, source, ledger, folders, lease, accepts=self.adopt_slot)
                survey.note("generation", f"Generation {generation.number} is open from {generation.start_lsn} on")
            published = publication.read(source, self.config.publication)
            join(survey, selected, published, begun, is_slot_new=slot is None)

    def restore_staging(self, survey: PreflightContext, lease: Lease) -> None:
        opened = generations.current(survey.ledger)
        if opened is None:
            return
        store = Store(self.config.lake, self.config.lake_access)
        path = layout.generation_file(self.config.pipeline, opened.number)
        if lake_folder.restore(self.config, survey.ledger, store, lease, opened):
            survey.note(
                "lake",
                f"Wrote {self.config.lake}/{path} again. Each table whose staged files are missing will be parked",
            )
        else:
            survey.note("lake", f"{self.config.lake}/{path} exists: nothing was written again")


def _pending(survey: PreflightContext, selected: Matching, published: Publication | None) -> bool:
    """Whether there are changes to make besides the slot."""
    work = publication_work(survey.config, selected, published, survey.facts)
    return bool(
        (survey.config.manage_publication and (work.create or work.add or work.drop))
        or generations.current(survey.ledger) is None
        or leaving(survey, selected, published)
        or joining(survey, selected, published)
        or to_put_aside(survey)
    )


def _intentions(
    config: PipelineConfig, published: Publication | None, work: PublicationWork, slot: SlotState | None
) -> Iterator[Finding]:
    if config.manage_publication and published is None:
        yield Finding.note("publication", f'Would create publication "{config.publication}" for {listed(work.create)}')
    if config.manage_publication and work.add:
        yield Finding.note("publication", f'Would add {listed(work.add)} to publication "{config.publication}"')
    if config.manage_publication and work.drop:
        yield Finding.note("publication", f'Would take {listed(work.drop)} out of publication "{config.publication}"')
    if slot is None:
        yield Finding.note("slot", f'Would create slot "{config.slot}"')
