"""Lists the names that `tidemark.failpoints.reach` is called with, in the order in which a run reaches them."""

from __future__ import annotations

from typing import Final

OF_A_BACKFILL: Final = (
    "plan.before_open",
    "plan.after_open",
    "read.after_low",
    "read.after_files",
    "read.before_chunk",
    "read.after_chunk",
    "read.after_high",
)

OF_CAPTURE: Final = (
    "drain.before_files",
    "drain.after_files",
    "drain.before_manifest",
    "drain.after_manifest",
    "drain.before_register",
    "drain.after_register",
    "merge.after_plan",
    "merge.before_history",
    "merge.after_history",
    "merge.before_current",
    "merge.after_current",
    "merge.before_result",
    "merge.after_result",
    "merge.after_ingest",
    "confirm.before_confirm",
    "confirm.after_confirm",
)

OF_MAINTENANCE: Final = (
    "maintain.after_mark",
    "maintain.after_manifest",
    "maintain.after_files",
    "maintain.after_rows",
    "maintain.after_chunks",
    "maintain.after_plans",
    "maintain.after_optimize",
    "maintain.before_result",
)

OF_REPLAY: Final = ("replay.after_history", "replay.before_commit", "replay.after_commit")

# Of what brings changes and rows into the tables; maintenance runs beside it.
NAMES: Final = OF_A_BACKFILL + OF_CAPTURE
ALL: Final = NAMES + OF_MAINTENANCE + OF_REPLAY
