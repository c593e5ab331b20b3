"""What the facts of a server come to, where a real server would have to be set up for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.pipeline import pipeline_config
from tidemark.config import PipelineConfig, TableRule
from tidemark.findings import Finding
from tidemark.source.catalogue.inspection import ServerFacts, server_findings, slot_findings
from tidemark.source.wal.slot import SlotState

GIB = 2**30
SOUND = ServerFacts(
    version=180000,
    database="shop",
    standby=False,
    wal_level="logical",
    slots=3,
    max_slots=10,
    senders=3,
    max_senders=10,
    role="tidemark",
    replication=True,
    may_create=True,
    synchronous_standby_names="",
    slot_wal_keep_bytes=100 * GIB,
    idle_slot_timeout_s=None,
)
CONFIG = pipeline_config(
    "shop",
    "/lake",
    (TableRule("shop.*"),),
    {"wal_valve_bytes": 8 * GIB},
    source_connection="shop_source",
    schedule="*/5 * * * *",
)
SLOT = SlotState(
    name="tidemark_shop",
    plugin="pgoutput",
    slot_type="logical",
    database="shop",
    temporary=False,
    active_pid=None,
    restart_lsn=None,
    confirmed_lsn=None,
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    failover=False,
    synced=False,
    invalidation_reason=None,
    retained_bytes=0,
)


def found(slot: SlotState | None = None, config: PipelineConfig = CONFIG, **facts: Any) -> list[Finding]:
    return list(server_findings(replace(SOUND, **facts), config, slot=slot))


def test_a_sound_server_gives_no_finding() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("facts", "check", "message"),
    [
        ({"version": 140010}, "version", "PostgreSQL 14"),
        ({"standby": True}, "standby", "is a standby"),
        ({"wal_level": "replica"}, "wal_level", "wal_level is replica"),
        ({"slots": 10}, "slots", "All 10 replication slots"),
        ({"senders": 10}, "senders", "All 10 WAL senders"),
        ({"replication": False}, "role", "ALTER ROLE tidemark REPLICATION"),
        ({"role": 'Odd"one', "replication": False}, "role", 'ALTER ROLE "Odd""one" REPLICATION'),
    ],
)
def test_one_error_each(facts: dict[str, Any], check: str, message: str) -> None:
    (finding,) = found(**facts)
    assert (finding.severity, finding.check) == ("error", check)
    assert message in str(finding)
    assert finding.remedy


def test_a_newer_version_is_only_a_warning() -> None:
    (finding,) = found(version=190001)
    assert (finding.severity, finding.check) == ("warning", "version")


def test_a_database_whose_text_need_not_convert_wants_messages_for_its_role_alone() -> None:
    (finding,) = found(encoding="WIN1252", anybody_writes_messages=True)
    assert (finding.severity, finding.check) == ("warning", "messages")
    for encoding in ("UTF8", "SQL_ASCII"):
        assert found(encoding=encoding, anybody_writes_messages=True) == []
    assert found(encoding="WIN1252", anybody_writes_messages=False) == []


def test_no_slot_need_be_left_where_ours_exists_and_no_sender_where_it_is_read() -> None:
    assert found(slot=SLOT, slots=10) == []
    assert found(slot=replace(SLOT, active_pid=7), senders=10) == []
    assert len(found(slot=SLOT, senders=10)) == 1


@pytest.mark.parametrize(
    ("setting", "trapped"),
    [
        ("", False),
        ("*", True),
        ("standby1, standby2", False),
        ("FIRST 1 (standby1, *)", True),
        ("ANY 2 (s1, s2, tidemark_shop)", True),
        ('ANY 1 ("TIDEMARK_SHOP")', True),
        ("2 (s1, s2, s3)", False),
        ("tidemark_other", False),
    ],
)
def test_synchronous_standby_names(setting: str, trapped: bool) -> None:
    assert [f.check for f in found(synchronous_standby_names=setting)] == ["synchronous_standby_names"] * trapped


@pytest.mark.parametrize(
    ("keep", "severity"), [(None, "note"), (100 * GIB, None), (8 * GIB, "warning"), (1 * GIB, "warning")]
)
def test_the_limit_of_a_slot_against_the_valve(keep: int | None, severity: str | None) -> None:
    assert [f.severity for f in found(slot_wal_keep_bytes=keep)] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("idle_s", "schedule", "severity"),
    [
        (None, "@daily", None),
        (3600, "*/5 * * * *", None),
        (3600, "*/45 * * * *", "warning"),
        (3600, "0 * * * *", "error"),
        (3600, "*/5 8-18 * * *", "error"),
        (3600, None, "warning"),
    ],
)
def test_the_idle_timeout_of_a_slot_against_the_schedule(
    idle_s: int | None, schedule: str, severity: str | None
) -> None:
    findings = found(config=replace(CONFIG, schedule=schedule), idle_slot_timeout_s=idle_s)
    assert [(f.severity, f.check) for f in findings] == (
        [(severity, "idle_replication_slot_timeout")] if severity else []
    )


def test_a_slot_that_is_about_to_be_lost_is_said() -> None:
    assert list(slot_findings(SLOT)) == []
    (finding,) = slot_findings(replace(SLOT, wal_status="unreserved", safe_wal_size=-5))
    assert "about to be lost (0 bytes of WAL are left)" in finding.message
    near = replace(SLOT, wal_status="extended", safe_wal_size=1 * GIB, retained_bytes=20 * GIB)
    (finding,) = slot_findings(near)
    assert "1.0 GiB more and it is lost" in finding.message
    assert list(slot_findings(replace(near, safe_wal_size=10 * GIB))) == []
