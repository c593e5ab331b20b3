"""A storage account of Azure: with a hierarchical namespace, or without, which preflight refuses; who is let in.

By Azure's emulator, where TIDEMARK_AZURITE names it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support import azure_server
from tests.support.azure_front import ACCOUNT
from tests.support.azure_server import Azure
from tests.support.pipeline import pipeline_config
from tidemark.capture.lake_findings import look_at_bucket
from tidemark.errors import LakeRefused
from tidemark.staging.store import Store

pytestmark = pytest.mark.skipif(azure_server.PROGRAM not in os.environ, reason="Azurite is fetched by hand")


@pytest.fixture(scope="module", params=[False, True], ids=["without namespace", "with namespace"])
def account(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bool, Azure]]:
    with azure_server.running(tmp_path_factory.mktemp("azure"), request.param) as azure:
        yield request.param, azure


def test_preflight_refuses_an_account_without_a_hierarchical_namespace(account: tuple[bool, Azure]) -> None:
    has_namespace, azure = account
    lake = azure.lake()
    found = list(look_at_bucket(Store(lake, azure.access(lake)), pipeline_config("shop", lake)))
    assert [finding.severity for finding in found] == ([] if has_namespace else ["error"]) + ["warning"]
    assert ("no hierarchical namespace" in found[0].message) is not has_namespace
    assert azure.names(lake.removeprefix("abfss://")) == []


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
    signature = account_signature(fields.pop("rights", "rwdlacx"), fields.pop("hours", 1))
    extra = {name: value.replace("SIGNATURE", signature) for name, value in fields.get("extra", {}).items()}
    return {**fields, **({"extra": extra} if extra else {})}


def account_signature(rights: str, hours: int) -> str:
    """Of an account, for all that is in it ("Create an account SAS")."""
    of = {
        "sv": "2021-12-02",
        "ss": "b",
        "srt": "sco",
        "sp": rights,
        "st": _at(-24),
        "se": _at(hours),
        "spr": "https,http",
    }
    text = "\n".join([ACCOUNT, rights, "b", "sco", of["st"], of["se"], "", of["spr"], of["sv"], "", ""])
    digest = hmac.new(base64.b64decode(azure_server.KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({**of, "sig": base64.b64encode(digest).decode()})


def _at(hours: int) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
