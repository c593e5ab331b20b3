"""Whose move an error is decides what Airflow does; nothing in the tree is left to chance."""

from __future__ import annotations

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowTaskTimeout

from tidemark.errors import Move, TidemarkError, leaves
from tidemark_airflow.failures import ACTIONS, MovePolicy


@pytest.mark.parametrize("leaf", sorted(leaves(), key=str), ids=lambda leaf: leaf.__name__)
def test_only_what_a_retry_can_mend_is_retried(leaf: type[TidemarkError]) -> None:
    error = leaf(**dict.fromkeys(leaf.fact_names(), "x"))
    decision = MovePolicy().evaluate(error, 1, 2)
    assert decision.action is (RetryAction.RETRY if leaf.move is Move.RETRY else RetryAction.FAIL)
    assert decision.reason == str(error)


def test_the_table_has_every_move() -> None:
    assert set(ACTIONS) == set(Move)


@pytest.mark.parametrize("error", [OSError("gone"), AirflowTaskTimeout("late"), KeyError("x")])
def test_an_error_of_somebody_else_keeps_airflows_own_retries(error: BaseException) -> None:
    assert MovePolicy().evaluate(error, 1, 2).action is RetryAction.DEFAULT
