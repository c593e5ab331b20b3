"""Whose move an error is decides what Airflow does; nothing in the tree is left to chance."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.errors import Move, TidemarkError, UnexpectedError, leaf_of, leaves
from tidemark_airflow.failures import guarded


def raised(error: Exception) -> BaseException:
    @guarded
    def execute() -> None:
        raise error from ConnectionError("down")

    with pytest.raises(Exception) as caught:  # noqa: PT011
        execute()
    return caught.value


@pytest.mark.parametrize("leaf", sorted(leaves(), key=str), ids=lambda leaf: leaf.__name__)
def test_only_what_a_retry_can_mend_is_retried(leaf: type[TidemarkError]) -> None:
    error = leaf(**dict.fromkeys(leaf.fact_names(), "x"))
    final = raised(error)
    assert isinstance(final, AirflowFailException) is (leaf.move is not Move.RETRY)
    assert isinstance(final, leaf)
    assert (type(final).__name__, str(final), final.facts) == (leaf.__name__, str(error), error.facts)
    assert final.__traceback__ is not None
    assert leaf_of(leaf.__name__) is leaf, "the class that is made on the way is no leaf of the tree"


def test_what_airflow_itself_raises_goes_through_and_what_nobody_foresaw_does_not_quote() -> None:
    skipped = AirflowSkipException("nothing waits")
    assert raised(skipped) is skipped
    assert isinstance(raised(KeyError("4711")), UnexpectedError)
    assert "4711" not in str(raised(KeyError("4711")))
