"""`tidemark.errors` -> what Airflow does with a failed task: the one table from `Move` to Airflow.

A retry is worth its wait only if the same task, run again, is expected to succeed. Every other error of the tree
fails the task at once, under its own name: a retry policy sees the exception itself, so nothing has to be wrapped in
AirflowFailException. Errors outside of the tree (spark-submit's exit code) keep Airflow's ordinary retries. Source:
Airflow 3.3, airflow/sdk/definitions/retry_policy.py.

What leaves an operator, Airflow logs with its text and that of everything it was raised from; `guarded` sees to it that
no such text quotes a value.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import RetryAction, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException

from tidemark.errors import Move, TidemarkError
from tidemark.unexpected_errors import hides_foreign_texts

ACTIONS: dict[Move, RetryAction] = {
    Move.RETRY: RetryAction.RETRY,
    Move.FIX_CONFIG: RetryAction.FAIL,
    Move.FIX_SOURCE: RetryAction.FAIL,
    Move.FIX_TARGET: RetryAction.FAIL,
    Move.BACKFILL: RetryAction.FAIL,
    Move.BUG: RetryAction.FAIL,
}

# Around whatever Airflow calls of ours. Its own exceptions (skipped, failed for good) keep their words.
guarded = hides_foreign_texts(AirflowException)


class MovePolicy(RetryPolicy):
    """Decides by whose move it is. The reason that Airflow logs and keeps is the error's own text, remedy included."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        if isinstance(exception, TidemarkError):
            return RetryDecision(action=ACTIONS[exception.move], reason=str(exception))
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        return {"__type": f"{type(self).__module__}.{type(self).__qualname__}"}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> MovePolicy:
        return cls()
