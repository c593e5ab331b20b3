"""Continues a pipeline on the cluster that `pg_upgrade` made of its source, once a person has said so (R8).

    ── last run ── confirmed ── shut down      the old cluster: pg_upgrade refuses while the slot has something to send
                                    │
                                pg_upgrade     OIDs, files and transaction ids go on; WAL begins anew
                                    └── slot ──►  the new cluster: the slot sends everything that commits here

Everything decodable was confirmed, so it was staged. The slot of the new cluster sends everything after it. So the
next generation begins at the slot, and no table needs a backfill. The catalogue cannot prove that, and the person may
be wrong: somebody may have advanced the old slot past a change, or created the slot by hand after a change. So:

1. The checks of `_refusal` and `_unchanged` refuse another server, an older copy of it, an older ledger, a slot that
   preflight made, and a server below version 17. Then nothing is changed. A table whose definition is not the one of
   the last run needs a backfill.
2. Every proof of a table (`ledger.reading.proofs`) is withdrawn, and the caller starts a verify with repair of all
   tables.

A crash between the two transactions costs a backfill and no row. After the first one the slot is the pipeline's own,
and the next run raises SourceReplaced. docs/decisions/2026-11-24-a-person-says-that-pg-upgrade-ran.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from msgspec import structs

from tidemark.capture import lake_folder
from tidemark.capture.continuity import ownership
from tidemark.capture.continuity.discontinuity import open_next
from tidemark.capture.continuity.recovery import list_staging, unregistered_staging
from tidemark.capture.definitions.column_guarding import guarded_by
from tidemark.capture.preflight_context import STATEMENT_TIMEOUT_S
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.findings import listed
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger import migrations, owned_objects, pipeline_files
from tidemark.ledger.captured import backfill_marks, guarded_columns, relation_ids, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, hold
from tidemark.ledger.reading import proofs
from tidemark.ledger.staged import batches, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session
from tidemark.run import Run
from tidemark.schema.fingerprint import SPELLED_SINCE, WRITTEN_BY, Fingerprint
from tidemark.source import upgrade_traces
from tidemark.source.catalogue import catalog
from tidemark.source.wal import slot as slots
from tidemark.source.wal.slot import Server, SlotState
from tidemark.source.wal.timelines import read_history
from tidemark.storage.store import Store
from tidemark.wording import counted

LEASE_WAIT_S: Final = 10
# The first version whose pg_upgrade keeps logical slots. The old cluster must have this version too.
KEEPS_SLOTS: Final = 170000


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The present server of the pipeline's connection, and the pipeline's slot on it."""

    config: PipelineConfig
    source: psycopg.Connection[Any]
    ledger: Ledger
    store: Store
    server: Server
    slot: SlotState
    confirmed_lsn: Lsn


def continue_upgraded(run: Run, *, who: str) -> tuple[str, bool]:
    """Open a generation on the upgraded cluster that marks no unchanged table. Returns a text for the user, and
    whether the generation was opened.

    Raises the errors of `source.wal.slot.usable`, SlotBusy, LeaseTaken, and the errors of the lake's folder.
    """
    config = run.config
    with (
        open_ledger(run.ledger, config.pipeline) as ledger,
        postgres_session.connect(
            run.source, application_name=config.application_name, statement_timeout_s=STATEMENT_TIMEOUT_S
        ) as source,
    ):
        migrations.require(ledger.connection)
        if generations.current(ledger) is None:
            return "Nothing was done: this pipeline has captured nothing yet.", False
        with hold(run.ledger, config.pipeline, SLOT, run.holder, wait_s=LEASE_WAIT_S) as lease:
            pipeline_files.require(ledger, config.digest)
            generation = generations.required(ledger)
            store = Store(config.lake, config.lake_access)
            folders = list_staging(ledger, store)
            lake_folder.refuse_another(config, source, store, folders.numbers, generation)
            slot, confirmed_lsn = slots.usable(source, config.slot)
            ownership.refuse_other_reader(config, source, own=False)
            server = slots.read_server(source)
            cluster = _Cluster(config, source, ledger, store, server, slot, confirmed_lsn)
            refusal = _refusal(cluster, generation)
            if refusal is not None:
                return f"Nothing was done: {refusal}.", False
            rows = [row for row in tables.all_of(ledger) if row.life.is_captured]
            unchanged = _unchanged(cluster, generation, rows)
            if rows and not unchanged:
                return "Nothing was done: no table has the OID, the file and the columns of the last run.", False
            changed = [row.table for row in rows if row.table not in unchanged]
            with ledger.transaction():
                ownership.adopt(config, source, ledger, lease)
                relation_ids.carry(ledger, generation.system_identifier, server.system_identifier)
                guarded_columns.carry(ledger, generation.system_identifier, server.system_identifier, server.timeline)
                tables.keep_fingerprints(ledger, unchanged)
                proofs.withdraw(ledger)
            opening = GenerationFile(
                pipeline=config.pipeline,
                number=0,  # `open_next` gives it its own
                system_identifier=server.system_identifier,
                timeline=server.timeline,
                slot=slot.name,
                start_lsn=confirmed_lsn,
                opened_at=run.now().isoformat(),
                reason=f"{who} said that pg_upgrade made system {server.system_identifier} of "
                f"{generation.system_identifier}, staged up to {generation.staged_lsn}",
                backfill_kind=backfill_marks.GAP if changed else None,
                history=str(read_history(source, server.timeline)),
                tables=dict.fromkeys(changed) if changed else None,
            )
            opened = open_next(ledger, folders, lease, opening, server)
    said = f"Generation {opened.number} continues at {opened.start_lsn} on the upgraded server."
    if changed:
        said += f" {counted(len(changed), 'table')} changed since the last run and need a backfill: {listed(changed)}."
    return said, True


def _refusal(cluster: _Cluster, generation: Generation) -> str | None:
    """The evidence that the server is not the upgrade of the one that `generation` staged; None if there is none."""
    config, source, ledger, server = cluster.config, cluster.source, cluster.ledger, cluster.server
    if server.system_identifier == generation.system_identifier:
        return f"the server has the system identifier of generation {generation.number}, so it is the captured one"
    if server.version < KEEPS_SLOTS:
        return f"pg_upgrade keeps slots from PostgreSQL 17 on, and the server has version {server.version // 10000}"
    if owned_objects.was_made(ledger, ownership.owned_object(source, "slot", config.slot)):
        return f'preflight created the slot "{config.slot}" on this server, pg_upgrade did not keep it'
    behind = unregistered_staging(cluster.store, config.pipeline, generation)
    if behind is not None:
        return f"the ledger is older than the lake: {behind}. Run `tidemark ledger rebuild {config.pipeline}` first"
    if cluster.confirmed_lsn < generation.staged_lsn:
        return (
            f"the slot stands at {cluster.confirmed_lsn}, below {generation.staged_lsn}, the last position staged, and "
            "the WAL of an upgraded server begins above the old one's"
        )
    newest_xid = batches.newest_xid(ledger, generation.system_identifier)
    next_xid = upgrade_traces.upgraded_at_xid(source)
    if newest_xid is not None and newest_xid >= next_xid:
        return (
            f"the server was not made of a state that has transaction {newest_xid}, which is staged: the next "
            f"transaction of that state is {next_xid}"
        )
    if cluster.slot.catalog_xmin is None or not upgrade_traces.is_as_restored(
        source, config.publication, cluster.slot.catalog_xmin
    ):
        return f'publication "{config.publication}", or a partition, was altered since the upgrade'
    return None


def _unchanged(cluster: _Cluster, generation: Generation, rows: list[TableRow]) -> dict[str, Fingerprint]:
    """Table id -> new fingerprint, for the tables whose definition is equal to that of the last run. `pg_upgrade`
    keeps the OIDs, by which the tables are matched."""
    table_ids = TableIds(cluster.config, cluster.ledger, generation.system_identifier, records=False)
    stored = guarded_columns.all_of(cluster.ledger, generation.system_identifier)
    bound = {oid: row.guards for oid, row in stored.items()}
    captured = [
        guarded_by(table, bound.get(table.relation_oid, {})).kept_as(kept_as)
        for table in catalog.captured_tables(cluster.source, cluster.config)
        if table.published and (kept_as := table_ids.recorded_id(table.relation_oid)) is not None
    ]
    prints = catalog.fingerprint(cluster.source, cluster.config.publication, captured)
    fingerprints = catalog.with_comments(cluster.source, prints)
    unchanged = {}
    for row in rows:
        fingerprint = fingerprints.get(row.table)
        if fingerprint is None or row.fingerprint is None:
            continue
        before = Fingerprint.from_json(row.fingerprint)
        now = fingerprint.carried(before)
        if _restored(before) == _restored(now):
            unchanged[row.table] = now
    return unchanged


def _restored(fingerprint: Fingerprint) -> Fingerprint:
    """The parts of a fingerprint that `pg_upgrade` keeps. It changes the ids of the transactions that wrote the
    catalogue, and the OIDs of keys and memberships, whose rows `upgrade_traces.is_as_restored` checks. A partition
    is restored by ATTACH. Partitions that are gone have nothing more to send."""
    columns = tuple(
        structs.replace(
            column,
            xmin=0,
            comment="",
            spelling={
                name: text
                for name, text in column.spelling.items()
                if name != SPELLED_SINCE and not name.endswith(WRITTEN_BY)
            },
        )
        for column in fingerprint.columns
    )
    partitions = tuple(
        structs.replace(partition, born_empty=False, links="", xmin=0) for partition in fingerprint.partitions
    )
    return structs.replace(
        fingerprint,
        columns=columns,
        partitions=partitions,
        membership=("",) * len(fingerprint.membership),
        publication_xmin=0,
        gone=(),
        comment="",
        key_made=0,
        schema_xmin=0,
    )
