"""What other object stores do that the one of the tests does not: they keep versions, lock objects, retain them, go by
clocks of their own, know less of the protocol. Played by the proxy in front of it, or asked of the server itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from tests.support.pipeline import pipeline_config
from tests.support.s3_proxy import Fault, Proxy, Request, from_the
from tests.support.s3_server import S3Server, access
from tidemark.capture.preflight.lake_findings import bucket_findings
from tidemark.config import PipelineConfig
from tidemark.errors import LakeRefused
from tidemark.storage import object_store
from tidemark.storage.store import Store


@pytest.fixture
def config(bucket: str) -> PipelineConfig:
    return pipeline_config("shop", f"s3a://{bucket}/lake")


# --- versions, locks, retention ---------------------------------------------------------------------------------------


def test_what_was_deleted_in_a_bucket_with_versions_is_gone_and_may_be_written_again(
    store: Store, s3_server: S3Server, bucket: str
) -> None:
    s3_server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store.write_new("p/a/manifest.json", b"1")
    with pytest.raises(FileExistsError):
        store.write_new("p/a/manifest.json", b"2")
    store.delete("p/a")
    assert (store.list("p"), store.list("p", "a"), store.exists("p/a/manifest.json")) == ([], [], False)
    store.write_new("p/a/manifest.json", b"3")
    assert store.read("p/a/manifest.json") == b"3"


def test_a_bucket_that_locks_objects_hides_what_is_deleted_and_is_noted_with_how_long(
    s3_server: S3Server, s3_proxy: Proxy
) -> None:
    client, bucket = s3_server.client(), f"locked-{uuid4().hex}"
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 3}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    config = pipeline_config("shop", f"s3a://{bucket}/lake")
    store = Store(config.lake, access(s3_proxy.url))
    until = (datetime.now(UTC) + timedelta(days=3)).date().isoformat()
    (finding,) = bucket_findings(store, config)
    assert (finding.severity, f"until {until}" in finding.message) == ("note", True), finding.message
    assert store.list("shop/current") == []


def without_checksum(request: Request) -> Fault | None:
    return "no checksum" if request.method == "PUT" and not request.checksum else None


def test_a_bucket_that_takes_nothing_without_a_checksum_gets_one(
    store: Store, config: PipelineConfig, s3_proxy: Proxy
) -> None:
    s3_proxy.fault = without_checksum
    with pytest.raises(LakeRefused, match="400 Bad Request, InvalidRequest"):
        list(bucket_findings(store, config))
    known_by = access(s3_proxy.url)
    checked = Store(config.lake, replace(known_by, settings={**known_by.settings, "checksum_algorithm": "SHA256"}))
    assert list(bucket_findings(checked, config)) == []
    with checked.create("p/large.bin") as file:
        file.write(b"x" * 20_000_000)
    checked.sync_folders("p")
    checked.write_atomic("p/small.json", b"{}")
    assert checked.list("p") == ["large.bin", "small.json"]


def test_a_bucket_that_retains_what_was_written_is_found_by_preflight(
    store: Store, config: PipelineConfig, s3_proxy: Proxy
) -> None:
    s3_proxy.retains = True
    with pytest.raises(LakeRefused, match="AccessDenied"):
        list(bucket_findings(store, config))


# --- clocks -----------------------------------------------------------------------------------------------------------


def ahead_by(lead: timedelta) -> Callable[[Request], Fault | None]:
    """A store whose clock is ahead refuses addresses whose time is over by it."""

    def fault(request: Request) -> Fault | None:
        query = parse_qs(urlsplit(request.target).query)
        if "X-Amz-Expires" not in query:
            return None
        signed = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        ends = signed + timedelta(seconds=int(query["X-Amz-Expires"][0]))
        return "no right" if datetime.now(UTC) + lead > ends else None

    return fault


def test_rules_are_seen_by_a_clock_that_is_minutes_off(store: Store, config: PipelineConfig, s3_proxy: Proxy) -> None:
    s3_proxy.fault = ahead_by(timedelta(minutes=14))
    assert list(bucket_findings(store, config)) == []
    assert any("X-Amz-Expires" in request.target for request in s3_proxy.requests)


def test_clocks_that_differ_by_too_much_are_said(store: Store, config: PipelineConfig, s3_proxy: Proxy) -> None:
    s3_proxy.fault = from_the(1, "clocks differ")
    with pytest.raises(LakeRefused, match=r"RequestTimeTooSkewed \(its clock is at 2026-01-01T00:20:00Z\)"):
        list(bucket_findings(store, config))


# --- another protocol -------------------------------------------------------------------------------------------------


def test_a_wrong_region_is_refused_at_once(store: Store, s3_proxy: Proxy) -> None:
    s3_proxy.fault = from_the(1, "other region")
    for ask in (lambda: store.write_new("p/new", b""), lambda: store.read("p/new"), lambda: store.list("p")):
        s3_proxy.forget()
        with pytest.raises(LakeRefused, match="incorrectly configured region"):
            ask()
        assert len(s3_proxy.requests) == 1


def test_a_store_that_does_not_know_a_header_is_refused(
    s3_proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client takes any 5xx for a fault that passes."""
    monkeypatch.setattr(object_store, "RETRIES_S", 1)
    s3_proxy.fault = lambda request: "unknown header" if request.method == "PUT" else None
    with pytest.raises(LakeRefused, match="501 Not Implemented, NotImplemented"):
        Store(f"s3a://{bucket}/lake", access(s3_proxy.url)).write_new("p/new", b"")


def test_a_request_that_came_too_slowly_is_made_again(store: Store, s3_proxy: Proxy) -> None:
    numbers = iter(range(1000))
    s3_proxy.fault = lambda _: "too slow" if next(numbers) % 2 == 0 else None
    store.write_new("p/one", b"1")
    assert store.read("p/one") == b"1"
