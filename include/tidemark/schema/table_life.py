"""Defines a captured table's life: three state machines, their transitions, and what each stage may do in each state.

    capture   is the table in file and publication, and was its join judged?
    merge     do its staged changes reach the target?
    target    does current lack anything that a backfill must bring?

A table is in one state of each machine. The machines are separate because they change separately: a parked table may
leave, and a table that needs a backfill is merged meanwhile. States are derived from what the ledger keeps of the
table, by columns that PostgreSQL computes, so nothing is stored twice. Every function of the ledger that changes a
state names the event (`ledger.captured.table_lives.step`). An event that TRANSITIONS lacks for the state raises in the
same transaction, and so does a write that leads to another state than TRANSITIONS. An event leaves the other two
machines as they are. A change of several machines, like beginning anew, is several events in one transaction.

The drawings of docs/table-life.md are made from TRANSITIONS (`sandbox.documents.life_drawing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Machine = Literal["capture", "merge", "target"]

# capture: never captured; seen or staged, its join not judged; in the stream; out of file or publication, or followed
# by another shape of it; the same, and listed no more: a person said so, or its Delta tables were put aside.
UNKNOWN: Final = "unknown"
JOINING: Final = "joining"
CAPTURED: Final = "captured"
LEFT: Final = "left"
FORGOTTEN: Final = "forgotten"

# merge: with every plan; less often, by choice; not before somebody resumes it; not before somebody mended what is
# wrong; not before `unpark_retry_s` are over.
MERGING: Final = "merging"
DEFERRED: Final = "deferred"
PAUSED: Final = "paused"
PARKED: Final = "parked"
RETRIED: Final = "retried"

# target: nothing; rows from before its join, unless it is seen empty; values of some rows; anything, for a reason that
# does not end by itself.
COMPLETE: Final = "complete"
EXISTING_ROWS: Final = "existing_rows"
HOLES: Final = "holes"
NEEDS_BACKFILL: Final = "needs_backfill"

STATES: Final[Mapping[Machine, tuple[str, ...]]] = {
    "capture": (UNKNOWN, JOINING, CAPTURED, LEFT, FORGOTTEN),
    "merge": (MERGING, DEFERRED, PAUSED, PARKED, RETRIED),
    "target": (COMPLETE, EXISTING_ROWS, HOLES, NEEDS_BACKFILL),
}

# What a table is in that the ledger begins to know.
INITIAL: Final[Mapping[Machine, str]] = {"capture": UNKNOWN, "merge": MERGING, "target": COMPLETE}

# Machine -> event -> state before -> state after. What is not here is refused.
TRANSITIONS: Final[Mapping[Machine, Mapping[str, Mapping[str, str]]]] = {
    "capture": {
        # A batch or a mark names the table before preflight judged its join.
        "stage": {UNKNOWN: JOINING},
        "join": {UNKNOWN: CAPTURED, JOINING: CAPTURED, LEFT: CAPTURED, FORGOTTEN: CAPTURED},
        # A new generation, a promotion that lost the WAL of its join, or beginning anew: as if it joined then.
        "judge_anew": {JOINING: JOINING, CAPTURED: JOINING, LEFT: LEFT, FORGOTTEN: FORGOTTEN},
        "leave": {JOINING: LEFT, CAPTURED: LEFT},
        "forget": {LEFT: FORGOTTEN, FORGOTTEN: FORGOTTEN},
    },
    "merge": {
        # As the file says, from when nothing waits for the table. One that is parked stays so.
        "defer": {MERGING: DEFERRED},
        "merge_always": {DEFERRED: MERGING},
        # The error's own move decides between the two; a park that somebody must mend is not softened by a retry. What
        # a plan from before a pause came to may be late: only what somebody must mend ends the pause.
        "park": {MERGING: PARKED, DEFERRED: PARKED, PAUSED: PARKED, RETRIED: PARKED, PARKED: PARKED},
        "park_for_retry": {
            MERGING: RETRIED,
            DEFERRED: RETRIED,
            PAUSED: PAUSED,
            RETRIED: RETRIED,
            PARKED: PARKED,
        },
        # One failed run, fewer than `park_after`.
        "fail": {MERGING: MERGING, DEFERRED: DEFERRED, PAUSED: PAUSED, RETRIED: RETRIED, PARKED: PARKED},
        # A result may be late: it ends no park that somebody must mend.
        "merge": {MERGING: MERGING, DEFERRED: DEFERRED, PAUSED: PAUSED, RETRIED: MERGING, PARKED: PARKED},
        "unpark": {PARKED: MERGING, RETRIED: MERGING},
        # A parked table is not paused: its error would be out of sight.
        "pause": {MERGING: PAUSED, DEFERRED: PAUSED, PAUSED: PAUSED},
        "resume": {PAUSED: MERGING},
    },
    "target": {
        # Of two marks the one stays that does not end by itself.
        "miss_rows": {
            COMPLETE: EXISTING_ROWS,
            HOLES: EXISTING_ROWS,
            EXISTING_ROWS: EXISTING_ROWS,
            NEEDS_BACKFILL: NEEDS_BACKFILL,
        },
        "miss_values": {
            COMPLETE: HOLES,
            HOLES: HOLES,
            EXISTING_ROWS: EXISTING_ROWS,
            NEEDS_BACKFILL: NEEDS_BACKFILL,
        },
        "need_backfill": {
            COMPLETE: NEEDS_BACKFILL,
            HOLES: NEEDS_BACKFILL,
            EXISTING_ROWS: NEEDS_BACKFILL,
            NEEDS_BACKFILL: NEEDS_BACKFILL,
        },
        "see_empty": {EXISTING_ROWS: COMPLETE},
        "fill_holes": {HOLES: COMPLETE},
        # The whole table was read and merged, and nothing asked for a backfill since it was begun.
        "backfill": {
            COMPLETE: COMPLETE,
            HOLES: COMPLETE,
            EXISTING_ROWS: COMPLETE,
            NEEDS_BACKFILL: COMPLETE,
        },
    },
}


def after(machine: Machine, event: str, state: str) -> str | None:
    """The next state after the event; None if the event must not happen in this state."""
    return TRANSITIONS[machine][event].get(state)


@dataclass(frozen=True, slots=True)
class TableLife:
    """A table's three states, and what each stage may do with the table in them."""

    capture: str
    merge: str
    target: str

    @property
    def is_captured(self) -> bool:
        """Whether the last preflight had the table in the pipeline file and in the publication."""
        return self.capture in (JOINING, CAPTURED)

    @property
    def awaits_its_join(self) -> bool:
        """Whether the next preflight that captures the table decides on its join."""
        return self.capture != CAPTURED

    @property
    def can_be_read(self) -> bool:
        """Whether chunks of the table count: its join horizon is known."""
        return self.capture == CAPTURED

    @property
    def is_listed(self) -> bool:
        return self.capture != FORGOTTEN

    @property
    def is_parked(self) -> bool:
        return self.merge in (PARKED, RETRIED)

    @property
    def is_paused(self) -> bool:
        """Whether a person paused the table's merges."""
        return self.merge == PAUSED

    @property
    def is_merged(self) -> bool:
        """Whether the table's staged changes are merged without a person."""
        return self.merge in (MERGING, DEFERRED)

    @property
    def needs_backfill(self) -> bool:
        return self.target != COMPLETE

    @property
    def is_marked_for_good(self) -> bool:
        """Whether the table needs a backfill for a reason that does not clear by itself."""
        return self.target == NEEDS_BACKFILL

    @property
    def may_be_seen_empty(self) -> bool:
        """Whether the need of a backfill ends if preflight reads the table without rows."""
        return self.can_be_read and self.target == EXISTING_ROWS

    @property
    def may_be_backfilled(self) -> bool:
        """Whether a backfill run may read the table, needed or not."""
        return self.can_be_read and self.is_merged

    @property
    def keeps_its_promise(self) -> bool:
        """Whether current equals the source as of the table's position (R11)."""
        return self.is_captured and not self.needs_backfill
