"""What a merge records of its ways, and of errors that it leaves to Spark."""

from __future__ import annotations

import logging

import pytest

from tidemark.target.merge_choice import MergeChoice, Way
from tidemark.target.merge_record import MergeRecord


class Foreseen(Exception):
    """Nobody did."""


def test_a_way_is_told_with_the_reasons_against_those_before_it() -> None:
    record = MergeRecord("shop.orders")
    record.begin(MergeChoice({}, {("chunks", Way.FILES): "the chunks repair"}, None))
    record.declined("chunks", Way.PROOF, "a row differs")
    record.took("chunks", Way.SPARK)
    record.took("changes", Way.DRIVER, "50 changes in 1 batch")
    assert record.way == {"chunks": "spark", "changes": "driver"}
    assert record.why == {
        "chunks": "not files: the chunks repair; not proof: a row differs",
        "changes": "50 changes in 1 batch",
    }


@pytest.mark.falls_back
def test_a_fall_back_is_recorded_and_logged_by_its_class_alone(caplog: pytest.LogCaptureFixture) -> None:
    record = MergeRecord("shop.orders")
    with caplog.at_level(logging.WARNING):
        record.fell_back("changes: driver", Foreseen("secret of a row"))
        record.not_compared(Foreseen("secret of a row"))
    assert record.fall_backs == ["changes: driver: Foreseen", "verify: Foreseen"]
    assert "Foreseen" in caplog.text
    assert "secret" not in caplog.text


def test_a_test_that_expects_no_fall_back_fails_by_it() -> None:
    with pytest.raises(Foreseen):
        MergeRecord("shop.orders").fell_back("changes: driver", Foreseen())
    with pytest.raises(Foreseen):
        MergeRecord("shop.orders").not_compared(Foreseen())
