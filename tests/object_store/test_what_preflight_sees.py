"""What a bucket does is tried by preflight, and what it does not see it does not accept."""

from __future__ import annotations

import pytest

from tests.support.pipeline import pipeline_config
from tests.support.remedies import Told
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import S3Server
from tidemark.capture.preflight.lake_findings import bucket_findings
from tidemark.config import PipelineConfig
from tidemark.errors import LakeRefused, LakeUnfit
from tidemark.storage.store import Store

RULE = (("x-amz-expiration", 'expiry-date="Fri, 23 Dec 2026 00:00:00 GMT", rule-id="tidy%20up"'),)


@pytest.fixture
def config(bucket: str) -> PipelineConfig:
    return pipeline_config("shop", f"s3a://{bucket}/lake")


def severities(store: Store, config: PipelineConfig) -> list[str]:
    return [finding.severity for finding in bucket_findings(store, config)]


def test_a_bucket_that_does_all_that_a_lake_needs_is_left_as_it_was(
    store: Store, config: PipelineConfig, s3_server: S3Server, s3_proxy: Proxy, bucket: str
) -> None:
    assert severities(store, config) == []
    assert s3_server.keys(bucket) == []
    assert s3_proxy.counted() == {"PUT": 4, "GET": 2, "LIST": 1, "HEAD": 4, "DELETE": 1}


@pytest.mark.walks("LakeUnfit")
def test_a_store_that_does_not_hear_of_a_condition_is_unfit(
    store: Store, config: PipelineConfig, s3_proxy: Proxy, told: Told
) -> None:
    s3_proxy.deaf_to = frozenset({"if-none-match"})
    with told(LakeUnfit, "replaced an object that was there", "Use a store that writes an object only if it is absent"):
        severities(store, config)
    s3_proxy.deaf_to = frozenset()
    assert severities(store, config) == []


def test_a_store_that_does_not_list_what_was_written_is_unfit(
    store: Store, config: PipelineConfig, s3_proxy: Proxy
) -> None:
    s3_proxy.lists_nothing = True
    with pytest.raises(LakeUnfit, match="not in the list"):
        severities(store, config)


@pytest.mark.parametrize("kind", ["PUT", "GET", "LIST", "DELETE"])
def test_a_right_that_is_missing_is_said(kind: str, store: Store, config: PipelineConfig, s3_proxy: Proxy) -> None:
    s3_proxy.refuses = frozenset({kind})
    with pytest.raises(LakeRefused, match="403 Forbidden, AccessDenied"):
        severities(store, config)


def test_a_lifecycle_rule_that_would_remove_live_files_is_an_error(
    store: Store, config: PipelineConfig, s3_proxy: Proxy
) -> None:
    s3_proxy.adds = RULE
    (finding,) = bucket_findings(store, config)
    assert (finding.severity, "tidy up" in finding.message) == ("error", True)


@pytest.mark.parametrize("folder", ["current", "history", "staging"])
def test_a_rule_for_one_folder_alone_is_found(
    folder: str, store: Store, config: PipelineConfig, s3_proxy: Proxy, bucket: str
) -> None:
    s3_proxy.adds, s3_proxy.adds_below = RULE, f"/shop/{folder}/"
    (finding,) = bucket_findings(store, config)
    assert finding.severity == "error"
    assert f"tidy up, removes objects below s3a://{bucket}/lake/shop/{folder} " in finding.message


def test_what_cannot_be_seen_of_lifecycle_rules_is_said(store: Store, config: PipelineConfig, s3_proxy: Proxy) -> None:
    s3_proxy.fault = lambda request: "before" if request.method == "HEAD" and "Signature" in request.target else None
    assert severities(store, config) == ["warning"]


def test_versions_that_the_bucket_keeps_are_noted(
    store: Store, config: PipelineConfig, s3_server: S3Server, bucket: str
) -> None:
    s3_server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert severities(store, config) == ["note"]
