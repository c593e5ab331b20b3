"""Judges a pipeline from ledger and slot: everything that is wrong, with severity, since when, and a remedy. Pure.

The task `health`, `tidemark status`, the page and the alerts share this judgement. `judge` reads nothing.

    red      the lake is not an exact copy, or soon cannot be, and stays so until a person acts
    warning  the lake is not exact, but something in progress ends that; or it may become red; or values have no place
             in their Delta type
    note     worth knowing; nothing is wrong

`Concern.line` has the fact and the remedy on one line of a screen; `message` and `ways` have all of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Final, Literal

from tidemark.capture import deferral
from tidemark.config import PipelineConfig
from tidemark.config.schedule import longest_silence_s, longest_unread_s
from tidemark.errors import TidemarkError
from tidemark.findings import listed
from tidemark.ledger.captured.backfill_marks import REPLAYED
from tidemark.ledger.captured.successors import is_built_by_capture
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import overview
from tidemark.ledger.observations.overview import OpenBackfill, PipelineStatus, TableStatus
from tidemark.names import TableName, spelled
from tidemark.observe import first_steps
from tidemark.observe.first_steps import FirstStep
from tidemark.observe.park_endings import brief_ending, ending_commands
from tidemark.run import utc_now
from tidemark.schema import table_life
from tidemark.source.catalogue.inspection import slot_findings
from tidemark.source.wal.slot import SlotState
from tidemark.wording import counted, duration, moment, plural

Severity = Literal["red", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("red", "warning", "note")

# In the order in which they are said, each with what it says of a table or a pipeline.
KINDS: Final[Mapping[str, str]] = {
    "cannot be seen": "cannot be seen",
    "slot": "the slot is not as it must be",
    "no run": "no run came to its end",
    "lag": "is behind its source",
    "parked": "is parked",
    "not captured": "is not captured",
    "has an error": "has an error",
    "new": "is new",
    "differs": "differs from its source",
    "needs a backfill": "needs a backfill",
    "backfill stands still": "has a backfill that stands still",
    "failed": "failed to merge",
    "run failed": "a run failed",
    "behind": "waits for its merge",
    "joining": "has joined unjudged",
    "paused": "is paused",
    "being backfilled": "is being backfilled",
    "another shape": "is built in another shape",
    "replayed": "is replayed",
    "unfit values": "has values that do not fit",
    "proof is old": "was not proven for long",
    "unproven": "is not proven yet",
}

# What the state of a table is called that equals its source by its construction; a verify proves it.
EXACT: Final = "exact"
# And of one that would, but for values that its Delta types cannot hold.
UNFIT: Final = "unfit values"
# What the state of a table is called that is not in file and publication.
NOT_CAPTURED: Final = "not captured"
# Tasks that are red for what stands here anyway.
VERDICTS: Final = ("health", "watch", "report")
# A backfill of which nothing was read for so long stands still: a chunk takes seconds, an outage is retried an hour.
STANDSTILL_S: Final = 7200
# A verify proves a thirtieth each night, so a proof that is older than two rounds is not renewed.
PROOF_DAYS: Final = 60
LINE_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing that is wrong. `table` is `schema.table`, empty for the whole pipeline; `columns` are the columns
    concerned. Concerns of one `kind` and `group` are shown together.

    `ways` are the next actions with their commands, `do` the one that fits on a line, `brief` the reason in a few
    words.
    """

    kind: str
    severity: Severity
    message: str
    table: str = ""
    group: str = ""
    brief: str = ""
    since: datetime | None = None
    ways: tuple[str, ...] = ()
    do: str = ""
    columns: tuple[str, ...] = ()

    @property
    def alert(self) -> tuple[str, str]:
        """Kind and subject, which identify the concern in later runs. A table that is parked again is a new alert;
        a table that is being backfilled is the same alert as before."""
        kind = "needs a backfill" if self.kind in ("being backfilled", "another shape", "replayed") else self.kind
        if self.kind == "parked" and self.since is not None:
            return kind, f"{self.table} {self.since.astimezone(UTC).isoformat()}"
        return kind, self.table or self.group

    @property
    def line(self) -> str:
        """What is wrong, where, and what to do, on one line."""
        what = f"{self.table} {KINDS[self.kind]}" if self.table else ""
        why = self.brief or self.message
        since = "" if self.since is None else f" since {moment(self.since)}"
        said = f"{what}{since}: {why}" if what else why
        do = self.do or (self.ways[0] if self.ways else "")
        return f"{_cut(said.rstrip('.'), max(LINE_CHARACTERS - len(do), 80))}. {do}" if do else _cut(said)


@dataclass(frozen=True, slots=True)
class Health:
    """`concerns` are ordered by severity. `states` has a word or two per table id, EXACT at rest. Concerns of the
    kinds `not_judged` are missing because they were not judged. `first_steps` are empty unless the pipeline is new."""

    pipeline: str
    concerns: tuple[Concern, ...]
    states: Mapping[str, str]
    not_judged: frozenset[str] = frozenset()
    first_steps: tuple[FirstStep, ...] = ()

    def of(self, severity: Severity) -> tuple[Concern, ...]:
        return tuple(concern for concern in self.concerns if concern.severity == severity)

    @property
    def worst(self) -> Literal["red", "warning"] | None:
        """The highest severity; a note counts as none."""
        return "red" if self.of("red") else "warning" if self.of("warning") else None

    @property
    def line(self) -> str:
        """The pipeline's state on one line."""
        wrong = (*self.of("red"), *self.of("warning"))
        if not wrong:
            return f"{self.pipeline}: every table is exact{self._not_proven}"
        new = [concern for concern in wrong if concern.kind == "new"]
        if new and self.worst == "warning":
            return f"{self.pipeline}: {new[0].line}"
        if all(concern.kind == UNFIT for concern in wrong):
            return _cut(f"{self.pipeline}: {_but_for(wrong)}{self._not_proven}")
        if len(wrong) == 1:
            return f"{self.pipeline}: {wrong[0].line}"
        parts = []
        for kind, count in Counter(concern.kind for concern in wrong).items():
            tables = [concern.table for concern in wrong if concern.kind == kind and concern.table]
            if tables:
                parts.append(f"{counted(count, 'table')} {of_many(kind, count)} ({listed(tables, limit=3)})")
            else:
                parts += [_cut(concern.brief or concern.message, 80) for concern in wrong if concern.kind == kind]
        return _cut(f"{self.pipeline}: {'; '.join(parts)}")

    @property
    def _not_proven(self) -> str:
        """The tables without a proof. A copy is exact by construction and proven by a verify. A table with waiting
        changes is exact as of its last merge."""
        counts = Counter(concern.kind for concern in self.of("note"))
        kinds = [kind for kind in ("behind", "unproven") if counts[kind]]
        return "".join(f"; {counted(counts[kind], 'table')} {of_many(kind, counts[kind])}" for kind in kinds)


def judge_by_ledger(ledger: Ledger, config: PipelineConfig, now: Callable[[], datetime] = utc_now) -> Health:
    """The pipeline's health from the ledger alone, without the slot."""
    return judge(config, overview.read(ledger), now=now())


def is_unread(config: PipelineConfig, ledger: PipelineStatus, now: datetime) -> bool:
    """Whether a run is missing, so that changes may wait in WAL that no run has read."""
    gap_s = longest_unread_s(config)
    return now - ledger.level_through > timedelta(seconds=config.alerts.max_lag_s if gap_s is None else 2 * gap_s)


def judge(
    config: PipelineConfig,
    ledger: PipelineStatus | None,
    *,
    now: datetime,
    slot: SlotState | None = None,
    unusable: TidemarkError | None = None,
    unseen: Mapping[str, str] | None = None,
) -> Health:
    """`slot` is None if it was not read. `unusable` is the reason why no drain may read it. `unseen` maps what
    could not be read, as "source", to the reason."""
    concerns = [*_unreadable(unseen or {}), *_slot(config, slot, unusable)]
    states: dict[str, str] = {}
    being_read = frozenset(_table(one) for one in (() if ledger is None else ledger.backfills) if _is_read(one))
    steps = first_steps.first_steps(config, ledger, slot, unseen or {}, being_read)
    concerns += _new(steps)
    if ledger is not None:
        concerns += [*_runs(config, ledger, now), *_failed_runs(config, ledger), *_errors_of_preflight(ledger)]
        for table in ledger.tables:
            concerns += _of_table(config, ledger, table, now, being_read)
            states[table.table] = _state(config, table, now, being_read)
        concerns += _standing_still(config, ledger.backfills, now)
    order = list(KINDS)
    concerns.sort(key=lambda one: (SEVERITIES.index(one.severity), order.index(one.kind), one.group, one.table))
    not_judged = set(KINDS) - {"cannot be seen", "slot"} if ledger is None else set()
    if slot is None and unusable is None:
        not_judged |= {"slot"} if "source" in (unseen or {}) else {"slot", "cannot be seen"}
    return Health(config.pipeline, tuple(concerns), states, frozenset(not_judged), steps)


# --- the pipeline -----------------------------------------------------------------------------------------------------


def _new(steps: tuple[FirstStep, ...]) -> Iterator[Concern]:
    """A new pipeline. Its first proof follows in the night by itself, and nothing is amber until then."""
    following = first_steps.next_step(steps)
    if following is not None and following.name != "first proof":
        brief = f"it is new, and next is its {following.name}"
        message = f"It is new, and next is its {following.name}: {following.said}."
        yield Concern("new", "warning", message, brief=brief, ways=(following.way,))


def _unreadable(unseen: Mapping[str, str]) -> Iterator[Concern]:
    for what, why in unseen.items():
        yield Concern("cannot be seen", "red", f"The {what} cannot be seen: {why}", group=what)


def _slot(config: PipelineConfig, slot: SlotState | None, unusable: TidemarkError | None) -> Iterator[Concern]:
    if unusable is not None:
        happened = unusable.happened.format(**unusable.facts)
        yield Concern("slot", "red", str(unusable), group=type(unusable).__name__, brief=happened)
        return
    if slot is None:
        return
    wrong = [(finding.message, finding.remedy) for finding in slot_findings(slot)]
    kept, valve = f'Slot "{slot.name}" keeps {slot.retained_bytes // 2**20} MiB of WAL', config.bounds.wal_valve_bytes
    if slot.retained_bytes > valve:
        wrong.append((f"{kept}, more than the {valve // 2**20} MiB that the pipeline allows", "Let the drain run"))
    elif not wrong and slot.limit_bytes and slot.retained_bytes > config.alerts.wal_share * slot.limit_bytes:
        limit = f"and is lost at {slot.limit_bytes // 2**20} MiB (max_slot_wal_keep_size)"
        wrong.append((f"{kept}, {limit}", "Let the drain run, or raise that setting"))
    for message, remedy in wrong:
        yield Concern("slot", "red", f"{message}. {remedy}.", group="wal", brief=message)


def _runs(config: PipelineConfig, ledger: PipelineStatus, now: datetime) -> Iterator[Concern]:
    if first_steps.has_never_run(ledger):
        return
    last = ledger.level_through
    gap_s = longest_unread_s(config)
    longest_s = longest_silence_s(config)
    dag = f"{config.pipeline}_capture"
    if gap_s is None or longest_s is None:
        return
    way = f"To see why: tidemark preflight {config.path}"
    if now - last > timedelta(seconds=longest_s):
        message = f"Nothing was staged since {moment(last)}: {dag} does not run, or its runs fail."
        yield Concern("no run", "red", message, since=last, ways=(way,))
    elif now - last > timedelta(seconds=max(config.alerts.max_lag_s, 2 * gap_s)):
        behind = duration((now - last).total_seconds())
        message = (
            f"What is staged is {behind} behind the source, more than the {duration(config.alerts.max_lag_s)} that the "
            f"pipeline allows: the drains of {dag} do not keep up."
        )
        yield Concern("lag", "red", message, since=last, ways=(way,))


def _failed_runs(config: PipelineConfig, ledger: PipelineStatus) -> Iterator[Concern]:
    """Failed runs of DAGs with a schedule. The next run may succeed; if none does, red findings name the
    consequences."""
    scheduled = [f"{config.pipeline}_{kind}" for kind in ("capture", "verify", "maintenance")]
    for run in ledger.failed_runs:
        if run.dag in scheduled and run.stage not in VERDICTS:
            brief = f"the last run of {run.dag} failed in {run.stage}: {run.error}"
            message = f"The last run of {run.dag} failed in {run.stage}. {run.error}"
            yield Concern("run failed", "warning", message, group=f"{run.dag} {run.stage}", brief=brief, since=run.at)


def _errors_of_preflight(ledger: PipelineStatus) -> Iterator[Concern]:
    for entry in ledger.table_errors:
        checks = ", ".join(sorted({error.check for error in entry.errors}))
        kind = "not captured" if entry.barred else "has an error"
        yield Concern(kind, "red", entry.message, entry.table, checks, since=entry.since)


# --- tables -----------------------------------------------------------------------------------------------------------


def _of_table(
    config: PipelineConfig, ledger: PipelineStatus, table: TableStatus, now: datetime, being_read: frozenset[str]
) -> Iterator[Concern]:
    row, name = table.row, table.table
    if not row.life.is_captured:
        if row.life.is_parked and row.error is not None and table.waiting_batches:
            exact = TableName.parse(row.table).exact  # another one may have the name
            ways = tuple(ending_commands(config, exact, row.error))
            yield Concern("parked", "note", row.error.message, exact, row.error.kind, row.error.kind, ways=ways)
        return
    if not row.life.can_be_read and not row.life.needs_backfill:
        why = "it is not checked yet whether it had rows before its first change was staged"
        way = f"The next run of {config.pipeline}_capture checks it"
        yield Concern("joining", "warning", f"It joined, and {why}.", name, brief=why, ways=(way,))
    if row.life.is_parked and row.error is not None:
        ways = tuple(ending_commands(config, row.table, row.error))
        do = brief_ending(config, row.table, row.error)
        yield Concern(
            "parked", "red", row.error.message, name, row.error.kind, row.error.kind, row.state_since, ways, do
        )
    elif row.failed_runs and row.error is not None:
        tries = f"{counted(row.failed_runs, 'run')} failed, and after {config.bounds.park_after} it is parked"
        yield Concern(
            "failed", "warning", f"{row.error.message} {tries}.", name, row.error.kind, row.error.kind, row.error_at
        )
    elif row.life.is_paused:
        yield _paused(config, table)
    elif table.waiting_batches and table.waiting_since is not None:
        yield _waiting(config, table, now)
    if row.life.needs_backfill:
        yield _unfilled(config, table, being_read)
    elif table.beside is not None:
        before = table.beside
        why = f"it is whole; the next run of {config.pipeline}_capture has readers see it in place of {before}"
        yield Concern("replayed" if table.is_replayed else "another shape", "note", why, name, brief=why)
    if table.differences:
        way = f"Trigger {config.pipeline}_verify with this table, share 1 and repair"
        message = f"It is not what its source is. {table.differences}"
        yield Concern("differs", "red", message, name, brief=table.differences, ways=(way,))
    if table.unfit:
        columns = ", ".join(f"{column} ({count})" for column, count in table.unfit.items())
        message = (
            f"Values did not fit the target type of {columns}; history has them as text, docs/formats.md says what "
            "current has in their place."
        )
        as_text = ", ".join(f"{json.dumps(column, ensure_ascii=False)}: text" for column in table.unfit)
        follows = config.evolves(table.called) == "follow"
        then = "the next run builds the table anew" if follows else "then a backfill"
        way = f"To capture as text: target: {{{as_text}}} for {name} in {config.path}; {then}"
        yield Concern(UNFIT, "warning", message, name, brief=columns, ways=(way,), columns=tuple(table.unfit))
    yield from _proof(config, ledger, table, now)


def _paused(config: PipelineConfig, table: TableStatus) -> Concern:
    """Paused tables: a person's choice, which a person may forget."""
    row, name = table.row, table.table
    by = f"by {row.paused_by}"
    message = f"Nothing of it is merged until somebody resumes it; {counted(table.waiting_changes, 'change')} wait."
    way = f"To go on: tidemark resume {quote(config.path)} {quote(name)}"
    return Concern("paused", "warning", message, name, by, by, row.state_since, (way,))


def _waiting(config: PipelineConfig, table: TableStatus, now: datetime) -> Concern:
    """Waiting tables. A table that waits by choice is late once it is due."""
    assert table.waiting_since is not None
    waited_s = (now - table.waiting_since).total_seconds()
    until = deferral.waits_until(config, table, now)
    chosen = config.merge.defers and table.row.life.merge == table_life.DEFERRED
    wanted_since = config.merge.due_at(table.waiting_since) if chosen else table.waiting_since
    late = (now - wanted_since).total_seconds() > config.alerts.max_lag_s
    too_long = f", longer than the {duration(config.alerts.max_lag_s)} that the pipeline allows" if late else ""
    message = (
        f"{counted(table.waiting_changes, 'change')} in {counted(table.waiting_batches, 'batch')} "
        f"{plural(table.waiting_changes, 'is')} staged and not merged, the oldest for {duration(waited_s)}"
        f"{too_long}{'' if until is None else f'; by choice, until {moment(until)}'}."
    )
    way = f"The log of merge in {config.pipeline}_capture says what it waits for"
    name = table.table
    return Concern("behind", "red" if late else "note", message, name, since=table.waiting_since, ways=(way,))


def _unfilled(config: PipelineConfig, table: TableStatus, being_read: frozenset[str]) -> Concern:
    """Tables that need a backfill. One that is being read ends by itself, and so does one that the capture starts;
    a parked table is not read."""
    row, name = table.row, table.table
    reason = message = row.backfill_reason or "nobody knows why"
    kind: str = "needs a backfill"
    severity: Severity = "warning"
    if table.table in being_read:
        kind, way = "being backfilled", ""
    elif table.beside is not None and row.life.is_merged and is_built_by_capture(row, table.called, config.evolves):
        kind, way = "another shape", f"{config.pipeline}_capture starts its backfill"
    elif row.backfill_kind == REPLAYED:
        kind, way = "replayed", f"The next merge of {config.pipeline}_capture builds it"
        if row.life.is_parked:
            way = "First end its park; then the next merge builds it"
    elif row.life.is_parked:
        severity, way = "red", "First end its park; then trigger the backfill"
    elif table.unreadable is not None:
        severity, message = "red", f"{reason}. {table.unreadable}"
        way = f"Then: airflow dags trigger {config.pipeline}_backfill --conf '{json.dumps({'tables': [name]})}'"
    elif config.auto_backfill:
        way = f"{config.pipeline}_capture starts it"
    else:
        way = f"To fill every table that needs it: airflow dags trigger {config.pipeline}_backfill"
        is_new = row.life.target == table_life.EXISTING_ROWS  # nothing went wrong, and a person says when
        severity = "warning" if is_new else "red"
    ways = (way,) if way else ()
    return Concern(kind, severity, message, name, reason, since=row.backfill_since, ways=ways)


def _proof(config: PipelineConfig, ledger: PipelineStatus, table: TableStatus, now: datetime) -> Iterator[Concern]:
    """The age of proofs. A table with history alone has nothing to prove. A table without a proof after two rounds
    of nightly verifies counts as one with an old proof."""
    name, proof = table.table, table.verified
    if not table.row.has_current:
        return
    oldest = None if proof is None else proof.through_at
    since = oldest or max(ledger.generation.opened_at, table.row.state_since)
    is_old = now - since > timedelta(days=PROOF_DAYS)
    if oldest is None:
        part = "no part" if proof is None else f"{proof.proven} of {counted(proof.parts, 'part')}"
        said = f"{part} of it {'was' if proof is None else 'are'} proven so far"
        if not is_old:
            yield Concern("unproven", "note", said, name)
            return
        message = f"In {PROOF_DAYS} days {said}: {config.pipeline}_verify does not get round to it."
    else:
        message = f"Its oldest proof is of {moment(oldest)}: {config.pipeline}_verify does not get round to it."
    if is_old:
        way = f"Look at the runs of {config.pipeline}_verify, or whether it is paused"
        yield Concern("proof is old", "warning", message, name, since=since, ways=(way,))


def _state(config: PipelineConfig, table: TableStatus, now: datetime, being_read: frozenset[str]) -> str:
    row = table.row
    if not row.life.is_captured:
        return NOT_CAPTURED
    if row.life.is_parked:
        return "parked"
    if row.life.is_paused:
        return "paused"
    if row.failed_runs:
        return f"failed {counted(row.failed_runs, 'run')}"
    if row.life.needs_backfill:
        waits = "needs a backfill" if table.beside is None else "replayed" if table.is_replayed else "another shape"
        return "being backfilled" if table.table in being_read else waits
    if table.differences:
        return "differs"
    if not row.life.can_be_read:
        return "joining"
    if not table.waiting_batches:
        return UNFIT if table.unfit else EXACT
    return "behind" if deferral.waits_until(config, table, now) is None else "deferred"


# --- backfills --------------------------------------------------------------------------------------------------------


def _table(backfill: OpenBackfill) -> str:
    return backfill.progress.table


def _is_read(backfill: OpenBackfill) -> bool:
    """Whether a backfill is being read, or only waits for its merge."""
    done = backfill.progress.ranges_done == backfill.progress.ranges
    return backfill.purpose == "fill" and (backfill.read_by is not None or done)


def _standing_still(config: PipelineConfig, backfills: Iterable[OpenBackfill], now: datetime) -> Iterator[Concern]:
    for backfill in backfills:
        idle = now - backfill.active_at
        if idle <= timedelta(seconds=STANDSTILL_S):
            continue
        fills = backfill.purpose == "fill"
        dag = f"{config.pipeline}_{'backfill' if fills else 'verify'}"
        message = (
            f"Of the {'backfill' if fills else 'verify'} {backfill.progress.backfill} nothing was read or merged for "
            f"{duration(idle.total_seconds())}."
        )
        way = f"To go on where it stands: clear the red task of {dag}, or airflow dags trigger {dag}"
        severity: Severity = "red" if fills else "warning"
        name = _table(backfill)
        yield Concern("backfill stands still", severity, message, name, since=backfill.active_at, ways=(way,))


# --- words ------------------------------------------------------------------------------------------------------------


def _but_for(unfit: Iterable[Concern]) -> str:
    columns = [f"{concern.table}.{spelled(column)}" for concern in unfit for column in concern.columns]
    number = counted(len(columns), "column")
    return f"exact, but for {number} with values that Delta's type cannot hold ({listed(columns, limit=3)})"


def of_many(kind: str, count: int) -> str:
    words = KINDS[kind]
    first, _, rest = words.partition(" ")
    if count == 1:
        return words
    several = {"is": "are", "has": "have", "was": "were", "needs": "need", "waits": "wait", "differs": "differ"}
    return f"{several.get(first, first)} {rest}"


def _cut(text: str, characters: int = LINE_CHARACTERS) -> str:
    text = " ".join(text.split())
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"
