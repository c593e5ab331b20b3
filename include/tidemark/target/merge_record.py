"""Records by which way each step of a table's merge was done, and why, and which errors made Spark do it instead.

Each record goes into the driver's log at once, and into the table's result. An error is recorded by its class, never by
its message, which may quote a row.
"""

from __future__ import annotations

import logging

from tidemark import failpoints
from tidemark.target.merge_choice import MergeChoice, Step, Way
from tidemark.target.merge_failures import condition_of, told

log = logging.getLogger(__name__)


class MergeRecord:
    """Of one table. `way` and `why` are by step; `fall_backs` say what was left to Spark, and the error's class."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.way: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.fall_backs: list[str] = []
        self._against: list[tuple[Step, Way, str]] = []

    def begin(self, choice: MergeChoice) -> None:
        """One more round of the merge."""
        self._against = [(one.step, one.way, one.reason) for one in choice.against]

    def declined(self, step: Step, way: Way, reason: str) -> None:
        """A way gave up."""
        self._against.append((step, way, reason))

    def took(self, step: Step, way: Way, why: str = "") -> None:
        """A step goes this way. Where another one stands before it, the reason against that is told too."""
        before = [f"not {other}: {reason}" for of, other, reason in self._against if of == step and other != way]
        self.way[step] = str(way)
        self.why[step] = "; ".join([why, *before] if why else before)
        log.info("%s: %s by %s (%s)", self.table, step, way, self.why[step])

    def fell_back(self, what: str, failed: Exception) -> None:
        """An error that nobody foresaw, before anything was written. Raises it where fall-backs fail."""
        condition = condition_of(failed)
        self.fall_backs.append(f"{what}: {condition}")
        log.warning("%s: %s is left to Spark after %s, raised at:\n%s", self.table, what, condition, told(failed))
        if failpoints.fall_backs_fail():
            raise failed

    def not_compared(self, failed: Exception) -> None:
        """A comparison failed, and the changes go on without it."""
        self.fall_backs.append(f"verify: {condition_of(failed)}")
        if failpoints.fall_backs_fail():
            raise failed
