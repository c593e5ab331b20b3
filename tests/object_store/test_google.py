"""The lake root in a bucket of Google's protocol: the same files, asked for with a service account's key."""

from __future__ import annotations

import json

import pytest

from tests.support.google_server import Google, account, another_key, in_front_of
from tests.support.s3_proxy import PASSING, Fault, Proxy, Request
from tests.support.s3_server import S3Server
from tests.support.thorough import thorough
from tidemark.errors import LakeRefused
from tidemark.storage.store import Store


@pytest.fixture
def lake(s3_server: S3Server) -> str:
    return f"gs://{s3_server.new_bucket()}/lake"


@pytest.mark.parametrize("fault", ["after", *thorough(*(fault for fault in PASSING if fault != "after"))])
def test_a_put_whose_answer_is_lost_is_made_once_and_is_known_for_ones_own(
    fault: Fault, s3_server: S3Server, s3_proxy: Proxy, lake: str
) -> None:
    def break_one(request: Request) -> Fault | None:
        return fault if request.method == "PUT" and not s3_proxy.broken else None

    s3_proxy.fault = break_one
    with in_front_of(s3_server, s3_proxy.url) as google:
        store = Store(lake, google.access(lake))
        store.write_new("p/manifest.json", b"{}")
        assert [way for way, _ in s3_proxy.broken] == [fault]
        assert store.read("p/manifest.json") == b"{}"
        with pytest.raises(FileExistsError):
            store.write_new("p/manifest.json", b"[]")


def test_another_account_is_refused_and_its_key_is_not_told(google: Google, lake: str) -> None:
    key = account(another_key())
    with pytest.raises(LakeRefused, match="401 Unauthorized, AuthenticationRequired") as refused:
        Store(lake, google.access(lake, key)).write_new("x", b"")
    assert json.loads(key)["private_key_id"] not in str(refused.value)
    assert "PRIVATE" not in str(refused.value)


def test_a_listing_begins_at_a_name(google: Google, lake: str) -> None:
    store = Store(lake, google.access(lake))
    for name in ("g1/00A-x/one.bin", "g2/00A-x/one.bin", "g2/00B-x/one.bin", "g3/00A-x/v/a.bin"):
        store.write_new(f"p/{name}", b"")
    google.asked.clear()
    assert store.list_from("p", "g2", "00B") == {"g2": ["00B-x"], "g3": ["00A-x"]}
    (asked,) = google.asked
    assert "start-after=lake/p/g2/00" in asked
