"""A server with another system identifier -> whether `pg_upgrade` made it of the very state that was staged last (R8).

    ── heartbeat and mark ── confirmed ── shut down      the old cluster: nothing that has a transaction id comes behind
                                   │
                              pg_upgrade                 files and OIDs stay, WAL begins anew, then the slots are made
                                   └── slot ──►          the new one: no transaction wrote anything before the slot

What must hold, each by what the new cluster shows (`source.upgrade_mark`, `source.first_wal`):

1. It has the mark of the run that staged last, up to its heartbeat: so it was made of that state or of a later one,
   and not of another server's. An older copy of the ledger knows another run.
2. The state's next transaction id was the one after the mark's, but for those of other pipelines' marks: so nothing
   came behind it, here, or in a copy that went its own way. What had begun before the mark had ended: a run marks only
   then.
3. `pg_upgrade` itself made the slot, and no transaction wrote anything between the beginning of the new cluster's WAL
   and the slot: what commits behind the slot's position it sends, and there is nothing else.
4. Since the upgrade nobody altered the publication or the partitions, and a table's look is the ledger's, but for what
   an upgrade gives anew. A table for which that is not so is marked, and no other.

docs/decisions/2026-11-22-pg-upgrade-is-another-server.md has the counterexamples that each of these is for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg

from tidemark import postgres_session
from tidemark.capture.places import Places
from tidemark.capture.untouched import Touched
from tidemark.config import PipelineConfig
from tidemark.ledger import batches, generations, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.generations import Generation
from tidemark.lsn import Lsn
from tidemark.schema.fingerprint import SPELLED_SINCE, Fingerprint
from tidemark.source import catalog, first_wal, upgrade_mark
from tidemark.source.first_wal import Untold
from tidemark.source.slot import Server, SlotState
from tidemark.source.upgrade_mark import Mark, Marking, NameTaken

log = logging.getLogger(__name__)

_XIDS: Final = 2**32


@dataclass(frozen=True, slots=True)
class Upgraded:
    """`touched` says which tables may differ. `looks` are those at the tables that do not, which take the place of the
    ledger's: a catalogue that was restored has other transactions in it."""

    touched: Touched
    looks: dict[str, Fingerprint] = field(default_factory=dict)


def mark(source: psycopg.Connection[Any], marking: Marking | None, attempt: str, xid: int) -> None:
    """In the transaction of a run's heartbeat, whose id is `xid`: the mark, where an upgrade was announced."""
    if marking is None:
        return
    if marking.write(source, attempt, xid).xid is None:
        log.warning("An upgrade of the source is announced, and this run cannot mark it: others write, or did just now")
    else:
        log.info("Marked the source for its upgrade: %s", shown_at_shutdown(xid))


@dataclass(frozen=True, slots=True)
class Cluster:
    """The server that the pipeline's connection leads to now, with the pipeline's slot there."""

    config: PipelineConfig
    source: psycopg.Connection[Any]
    ledger: Ledger
    server: Server
    slot: SlotState


def judge(cluster: Cluster, generation: Generation) -> Upgraded | None:
    """Whether it was made of what `generation` staged last; None where it has no mark of the pipeline: then nobody said
    that it was upgraded."""
    source, ledger, slot = cluster.source, cluster.ledger, cluster.slot
    marks = upgrade_mark.marks(source)
    own = _own(cluster, marks)
    if own is None:
        return None
    rows = [row for row in tables.all_of(ledger) if row.life.is_captured]
    try:
        _require_mark(ledger, generation, own)
        _require_nothing_behind(source, own, marks)
        first_wal.require_made_by_upgrade(source, cluster.server, slot.confirmed_lsn or Lsn(0))
        publication = cluster.config.publication
        if slot.catalog_xmin is None or not upgrade_mark.is_restored(source, publication, slot.catalog_xmin):
            raise Untold("the publication, or partitions, were altered since the upgrade")
    except Untold as untold:
        return Upgraded(Touched(None, len(rows), str(untold)))
    looks = _looks(cluster)
    same = {}
    for row in rows:
        look = looks.get(row.table)
        then = None if row.fingerprint is None else Fingerprint.from_json(row.fingerprint)
        if look is not None and then is not None and _is_restored(then, look.carried(then)):
            same[row.table] = look.carried(then)
    touched = tuple(row.table for row in rows if row.table not in same)
    return Upgraded(Touched(touched, len(rows), evidence="the mark of the upgrade"), same)


def make_up(cluster: Cluster, generation: Generation) -> None:
    """Keep the looks and end the mark where a run died as it opened the generation: its file says which tables are
    marked, but has no looks. Nothing was staged of it yet, so the slot stands where it was made."""
    source, ledger = cluster.source, cluster.ledger
    if generation.staged_lsn != generation.start_lsn:
        return
    before = next((older for older in reversed(generations.all_of(ledger)) if older.number < generation.number), None)
    if before is None or before.system_identifier == generation.system_identifier:
        return
    own = _own(cluster, upgrade_mark.marks(source))
    # One that was announced since then is not this upgrade's.
    if own is None or own.is_done or own.attempt is None or own.attempt != _staged_last(ledger, before):
        return
    upgrade = judge(cluster, before)
    if upgrade is not None:
        tables.keep_fingerprints(ledger, {table: look.to_json() for table, look in upgrade.looks.items()})
    upgrade_mark.end(source, cluster.config)


def _own(cluster: Cluster, marks: list[Mark]) -> Mark | None:
    return next((mark for mark in marks if mark.pipeline == cluster.config.pipeline), None)


def _looks(cluster: Cluster) -> dict[str, Fingerprint]:
    """By the tables' names, at those that are captured."""
    config, source = cluster.config, cluster.source
    places = Places(config, cluster.ledger, cluster.server.system_identifier, records=False)
    captured = places.kept(table for table in catalog.captured_tables(source, config) if table.published)
    return catalog.with_comments(source, catalog.fingerprint(source, config.publication, captured))


def _require_mark(ledger: Ledger, generation: Generation, own: Mark) -> None:
    if own.attempt is None:
        raise Untold("no run could mark the source alone: something else was under way")
    if own.attempt != _staged_last(ledger, generation):
        raise Untold("the mark that it has is not the one of the run that staged last")


def _staged_last(ledger: Ledger, generation: Generation) -> str | None:
    """The attempt of the run that staged last, if up to its heartbeat."""
    if generation.heartbeat_lsn != generation.staged_lsn:
        return None
    return batches.attempt_of(ledger, generation.number, generation.staged_lsn)


def _require_nothing_behind(source: psycopg.Connection[Any], own: Mark, marks: list[Mark]) -> None:
    """Ids are compared by their low 32 bits, of which three are never given out: then this says no, once in four
    billion transactions."""
    next_xid = upgrade_mark.upgraded_at_xid(source)
    assert own.xid is not None
    behind = {mark.xid - own.xid for mark in marks if mark.xid is not None and mark.xid > own.xid}
    given_out = 0 if next_xid is None else (next_xid - own.xid) % _XIDS - 1
    if next_xid is None or not 0 <= given_out <= len(behind) or not behind.issuperset(range(1, given_out + 1)):
        raise Untold("transactions came behind the mark before the old cluster was shut down, or its ids are not known")


def _is_restored(then: Fingerprint, now: Fingerprint) -> bool:
    """`pg_upgrade` keeps the OIDs of TOAST tables; a look of before these were noted has none."""
    if not (then.toast and now.toast):
        then, now = replace(then, toast=0), replace(now, toast=0)
    return _restored(then) == _restored(now)


def _restored(look: Fingerprint) -> Fingerprint:
    """What of a look an upgrade carries over: not the ids of the transactions that wrote the catalogue, nor OIDs of
    keys, nor of memberships, of which `upgrade_mark.is_restored` says that nobody touched them since. A partition is
    restored by ATTACH. Those that are gone have nothing more to send: all that was staged is in the mark."""
    columns = tuple(
        replace(
            column,
            xmin=0,
            comment="",
            spelling={name: text for name, text in column.spelling.items() if name != SPELLED_SINCE},
        )
        for column in look.columns
    )
    partitions = tuple(replace(partition, born_empty=False, links="", xmin=0) for partition in look.partitions)
    return replace(
        look,
        columns=columns,
        partitions=partitions,
        membership=("",) * len(look.membership),
        publication_xmin=0,
        gone=(),
        comment="",
        key_made=0,
        called="",
        called_xmin=0,
    )


# --- by hand --------------------------------------------------------------------------------------------------------


def announce(config: PipelineConfig, source: str) -> tuple[str, bool]:
    """Have each run mark the source from now on; what to say, and whether it is so."""
    with postgres_session.connect(source, application_name=config.application_name) as session:
        try:
            mark = upgrade_mark.announce(session, config)
        except NameTaken:
            return (
                "Nothing was done. The role has an application_name of its own in the source's database, which is "
                "where the mark would stand: ALTER ROLE … IN DATABASE … RESET application_name.",
                False,
            )
    if mark.xid is None:
        return (
            f"Each run of {config.pipeline}_capture marks the source from now on. Stop everything that writes to the "
            "server, let a run go through, and call this again: it says what the server must show once it is shut "
            "down.",
            True,
        )
    return (
        f"The source is marked. Pause {config.pipeline}_capture and shut the server down: "
        f"{shown_at_shutdown(mark.xid)}. If it says more, something was written meanwhile: start the server, let "
        "another run go through, and call this again.",
        True,
    )


def take_back(config: PipelineConfig, source: str) -> tuple[str, bool]:
    """There is no upgrade; what to say, and whether there was a mark."""
    with postgres_session.connect(source, application_name=config.application_name) as session:
        if upgrade_mark.take_back(session, config):
            return "No run marks the source any more.", True
    return "No upgrade was announced.", False


def shown_at_shutdown(xid: int) -> str:
    """What `pg_controldata` says of a server on which nothing came behind the mark: epoch and low 32 bits."""
    epoch, low = divmod(xid + 1, _XIDS)
    return f'then `pg_controldata` must say "Latest checkpoint\'s NextXID: {epoch}:{low}"'
