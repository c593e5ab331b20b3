"""Records which way each step of a table's merge took, why, and which errors made Spark take over.

Each record goes into the driver's log at once, and into the table's result. An error is recorded by its condition or
class, never by its message, which may quote a row.
"""

from __future__ import annotations

import logging

from tidemark import failpoints
from tidemark.target.merge_choice import MergeChoice, Step, Way
from tidemark.target.merge_failures import condition_of, stack_frames

log = logging.getLogger(__name__)


class MergeRecord:
    """The record of one table. `way` and `why` map each step to its way and the reasons for it.

    Each of the `fall_backs` names the work that Spark took over, and the error's condition or class.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self.way: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.fall_backs: list[str] = []
        self._against: list[tuple[Step, Way, str]] = []

    def begin(self, choice: MergeChoice) -> None:
        """Start one more round of the merge: keep the reasons of its choice."""
        self._against = [(step, way, reason) for (step, way), reason in choice.against.items()]

    def declined(self, step: Step, way: Way, reason: str) -> None:
        """Record that a way raised Declined, with its reason."""
        self._against.append((step, way, reason))

    def took(self, step: Step, way: Way, why: str = "") -> None:
        """Record that a step takes this way, with the reasons against the ways that would have come first."""
        reasons = [
            f"not {declined_way}: {reason}"
            for reason_step, declined_way, reason in self._against
            if reason_step == step and declined_way != way
        ]
        self.way[step] = str(way)
        self.why[step] = "; ".join([why, *reasons] if why else reasons)
        log.info("%s: %s by %s (%s)", self.table, step, way, self.why[step])

    def fell_back(self, what: str, failed: Exception) -> None:
        """Record an unexpected error that was raised before anything was written; Spark takes over.

        Raises the error if the tests have set the switch by which a fall-back fails.
        """
        condition = condition_of(failed)
        self.fall_backs.append(f"{what}: {condition}")
        log.warning(
            "%s: %s is left to Spark after %s, raised at:\n%s", self.table, what, condition, stack_frames(failed)
        )
        if failpoints.fall_backs_fail():
            raise failed

    def not_compared(self, failed: Exception) -> None:
        """Record that a comparison failed; the changes are merged without it."""
        self.fall_backs.append(f"verify: {condition_of(failed)}")
        if failpoints.fall_backs_fail():
            raise failed
