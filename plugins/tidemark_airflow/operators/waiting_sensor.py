"""Decides by the pipeline's positions whether there is anything to drain, merge or confirm: success, skip, or a wait.

The sensor looks once. What it finds missing skips drain and merge, so that an idle run starts no Spark;
confirm runs all the same, by its own trigger rule. BaseSensorOperator's loop, `mode` and `timeout` are not
used: it would sleep in a worker slot.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context

from tidemark.config import PipelineConfig
from tidemark.wording import duration
from tidemark_airflow.connections import conninfo
from tidemark_airflow.failures import guarded
from tidemark_airflow.operators.capture_operators import is_by_hand
from tidemark_airflow.operators.run_figures import note_level
from tidemark_airflow.operators.waiting_trigger import ChangesTrigger
from tidemark_airflow.page.pipeline_link import LINKS
from tidemark_airflow.version_compat import AirflowSkipException

# Beyond wait_s a deferred task can only be waiting for a triggerer that does not run: then it fails, and says so.
TRIGGERER_GRACE_S = 120


class ChangesWaitingSensor(BaseSensorOperator):
    """Succeeds when something waits, else skips; defers in between for `wait_s` of the pipeline file, 0 by default."""

    operator_extra_links = LINKS

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    @guarded
    def execute(self, context: Context) -> str:
        from tidemark.capture.waiting import changes_waiting

        looked_at = datetime.now(UTC)
        look = changes_waiting(
            self.config,
            source=conninfo(self.config.source_connection),
            ledger=conninfo(self.config.ledger_connection),
            all_of_them=is_by_hand(context),
        )
        wait_s = self.config.bounds.wait_s
        if not look.waiting and wait_s:
            self.log.info("Nothing waits yet; looking again for %s in the triggerer", duration(wait_s))
            self.defer(
                trigger=ChangesTrigger(path=self.config.path, wait_s=wait_s),
                method_name="execute_complete",
                timeout=timedelta(seconds=wait_s + TRIGGERER_GRACE_S),
            )
        return self._outcome(context, look.waiting, look.reason, looked_at)

    @guarded
    def execute_complete(self, context: Context, event: Any = None) -> str:
        match event:
            case {"waiting": bool(waiting), "reason": str(reason), "looked_at": str(looked_at)}:
                return self._outcome(context, waiting, reason, datetime.fromisoformat(looked_at))
        raise TypeError(f"ChangesTrigger sent {event!r}, not {{'waiting': bool, 'reason': str, 'looked_at': str}}")

    def _outcome(self, context: Context, waiting: bool, reason: str, looked_at: datetime) -> str:
        if not waiting:
            note_level(self.config, context, looked_at)
            raise AirflowSkipException(reason)
        self.log.info("Changes wait: %s", reason)
        return reason
