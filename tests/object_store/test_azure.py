"""A storage account of Azure: with a hierarchical namespace, or without, which preflight refuses; who is let in.

By Azure's emulator, where TIDEMARK_AZURITE names it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import obstore
import pytest

from tests.support import azure_server
from tests.support.azure_front import ACCOUNT
from tests.support.azure_server import Azure
from tests.support.pipeline import pipeline_config
from tidemark.capture.preflight.lake_findings import bucket_findings
from tidemark.errors import LakeRefused
from tidemark.storage.store import Store

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", params=[False, True], ids=["without namespace", "with namespace"])
def account(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bool, Azure]]:
    with azure_server.running(tmp_path_factory.mktemp("azure"), request.param) as azure:
        yield request.param, azure


def test_preflight_refuses_an_account_without_a_hierarchical_namespace(account: tuple[bool, Azure]) -> None:
    has_namespace, azure = account
    lake = azure.lake()
    found = list(bucket_findings(Store(lake, azure.access(lake)), pipeline_config("shop", lake)))
    assert [finding.severity for finding in found] == ([] if has_namespace else ["error"]) + ["warning"]
    assert ("no hierarchical namespace" in found[0].message) is not has_namespace
    assert azure.names(lake.removeprefix("abfss://")) == []


def test_a_folder_goes_with_the_folders_in_it_that_were_left_empty(account: tuple[bool, Azure]) -> None:
    """As a task leaves them that died while it deleted."""
    _, azure = account
    lake = azure.lake()
    store = Store(lake, azure.access(lake))
    for name in ("p/batch/a/b/one.bin", "p/batch/a/two.bin", "p/batch/three.bin"):
        store.write_new(name, b"")
        obstore.delete(azure.store(lake.removeprefix("abfss://")), [f"lake/{name}"])
    store.write_new("p/other", b"")
    store.delete("p/batch")
    store.delete("p/batch")
    assert store.list("p") == ["other"]


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": {"extra__wasb__shared_access_key": azure_server.KEY}},
        {"extra": {"account_key": azure_server.KEY}},
        {"password": "of another way", "extra": {"sas_token": "?SIGNATURE"}},
        {"extra": {"sas_token": f"https://{ACCOUNT}.blob.core.windows.net/?SIGNATURE"}},
    ],
)
def test_each_way_of_a_connection_lets_staging_in(account: tuple[bool, Azure], fields: dict[str, Any]) -> None:
    _, azure = account
    lake = azure.lake()
    store = Store(lake, azure.access(lake, login=ACCOUNT, **_signed(fields)))
    store.write_new("x", b"content")
    assert store.read("x") == b"content"


@pytest.mark.parametrize(
    "fields",
    [
        {"password": base64.b64encode(b"another key").decode()},
        {"extra": {"sas_token": "SIGNATURE"}, "hours": -1},
        {"extra": {"sas_token": "SIGNATURE"}, "rights": "rl"},
    ],
)
def test_a_wrong_key_an_expired_signature_and_a_missing_right_are_refusals_that_tell_no_secret(
    account: tuple[bool, Azure], fields: dict[str, Any]
) -> None:
    _, azure = account
    lake = azure.lake()
    signed = _signed(fields)
    with pytest.raises(LakeRefused, match="403") as refused:
        Store(lake, azure.access(lake, login=ACCOUNT, **signed)).write_new("x", b"")
    assert "sig=" not in str(refused.value)
    assert str(signed.get("password", "sig=")) not in str(refused.value)


def _signed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a connection, with a signature where they say so."""
    fields = dict(fields)
    signature = azure_server.signature(fields.pop("rights", "rwdlacx"), fields.pop("hours", 1))
    extra = {name: value.replace("SIGNATURE", signature) for name, value in fields.get("extra", {}).items()}
    return {**fields, **({"extra": extra} if extra else {})}
