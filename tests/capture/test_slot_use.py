"""Ending the backend of a dead attempt: by the holder of the lease alone, and once."""

from __future__ import annotations

import psycopg
import pytest

from tests.capture.test_confirm import reading
from tests.support.hand_staged import HandStaged
from tidemark.errors import LeaseLost, SlotBusy
from tidemark.postgres import postgres_session
from tidemark.source.wal.slot_use import take_when_free


def test_whoever_lost_the_lease_ends_no_backend(capture: HandStaged) -> None:
    capture.settle()
    name = capture.config.application_name

    def lease_is_lost() -> None:
        raise LeaseLost(lease="slot", pipeline=capture.config.pipeline, holder="drain/2")

    with (
        reading(capture, name) as of_another_attempt,
        postgres_session.connect(capture.source, application_name=name) as source,
    ):
        with pytest.raises(LeaseLost):
            take_when_free(
                source,
                capture.config.slot,
                name,
                lambda: source.execute("SELECT pg_drop_replication_slot(%s)", (capture.config.slot,)),
                limit_s=0.4,
                check_lease=lease_is_lost,
            )
        pid = of_another_attempt.info.backend_pid
        assert capture.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")


def test_a_slot_that_stays_in_use_after_its_backend_was_ended_is_busy(capture: HandStaged) -> None:
    capture.settle()
    name = capture.config.application_name
    tries = []

    def refused() -> None:
        tries.append(1)
        raise psycopg.errors.ObjectInUse

    with reading(capture, name), postgres_session.connect(capture.source, application_name=name) as source:
        with pytest.raises(SlotBusy, match="process unknown"):
            take_when_free(
                source,
                capture.config.slot,
                name,
                refused,
                limit_s=0.4,
                check_lease=lambda: None,
            )
        assert len(tries) > 2
        assert not capture.sql(
            f"SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = '{capture.config.slot}'"
        )
