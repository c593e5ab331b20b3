"""Who asks, and what they may: a server that knows users, their secrets and their rights says no, and the error says
what about. What docs/errors.md lists is enough.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pipeline import pipeline_config
from tests.support.s3_proxy import Fault, Proxy, from_the, in_front_of
from tests.support.s3_server import S3Server, access
from tidemark.capture.preflight.lake_findings import bucket_findings
from tidemark.errors import LakeRefused
from tidemark.storage.lake_access import LakeAccess
from tidemark.storage.store import Store

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text()
OF_BUCKET = ("s3:ListBucket",)
OF_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


@pytest.fixture
def guarded_bucket(guarded_server: S3Server) -> str:
    return guarded_server.new_bucket("guarded")


def look(bucket: str, known_by: LakeAccess) -> list[str]:
    lake = f"s3a://{bucket}/lake"
    return [finding.severity for finding in bucket_findings(Store(lake, known_by), pipeline_config("shop", lake))]


def test_the_rights_that_the_documentation_lists_are_enough(guarded_server: S3Server, guarded_bucket: str) -> None:
    (listed,) = re.findall(r"^### LakeRefused\n(.*?)^### ", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"s3:\w+", listed)) == {*OF_OBJECTS, *OF_BUCKET}
    user = guarded_server.new_user("enough", guarded_bucket, OF_OBJECTS, OF_BUCKET)
    store = Store(f"s3a://{guarded_bucket}/lake", user)
    with store.create("p/a/one.bin") as file:
        file.write(b"one")
    store.sync_folders("p/a")
    assert (store.read("p/a/one.bin"), store.size("p/a/one.bin"), store.list("p")) == (b"one", 3, ["a"])
    store.delete("p/a")
    assert store.list("p") == []
    assert look(guarded_bucket, user) == []


@pytest.mark.parametrize("missing", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"])
def test_a_right_that_is_missing_is_found_by_preflight(
    missing: str, guarded_server: S3Server, guarded_bucket: str
) -> None:
    objects, of_bucket = [[r for r in rights if r != missing] for rights in (OF_OBJECTS, OF_BUCKET)]
    user = guarded_server.new_user(f"no-{missing[3:]}", guarded_bucket, objects, of_bucket)
    with pytest.raises(LakeRefused, match="403 Forbidden, AccessDenied"):
        look(guarded_bucket, user)


def test_a_wrong_secret_and_a_wrong_key_are_refused_and_stand_in_no_message(
    guarded_server: S3Server, guarded_bucket: str
) -> None:
    user = guarded_server.new_user("known", guarded_bucket, OF_OBJECTS, OF_BUCKET)
    for changed, word in (("secret_access_key", "SignatureDoesNotMatch"), ("access_key_id", "InvalidAccessKeyId")):
        wrong = replace(user, secrets={**user.secrets, changed: "AKIAnobody0everybody0"})
        with pytest.raises(LakeRefused, match=word) as refused:
            Store(f"s3a://{guarded_bucket}/lake", wrong).write_new("p/one.bin", b"")
        said = f"{refused.value} {refused.value.__cause__} {wrong}"
        assert not any(secret in said for secret in wrong.secrets.values())


def test_a_token_of_the_machines_own_identity_does_not_go_with_the_key_of_a_connection(
    s3_proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the machine")
    known_by = access(s3_proxy.url)
    lake = f"s3a://{bucket}/lake"
    Store(lake, known_by).write_new("p/one", b"")
    session = replace(known_by, secrets={**known_by.secrets, "session_token": "of the connection"})
    Store(lake, session).write_new("p/two", b"")
    assert [request.token for request in s3_proxy.requests] == ["", "of the connection"]
    assert look(bucket, known_by) == []


@pytest.mark.parametrize(
    ("how", "word"), [("expired", "ExpiredToken"), ("wrong secret", "SignatureDoesNotMatch"), ("no right", "Access")]
)
def test_credentials_that_end_are_refused_whatever_is_asked(
    how: Fault, word: str, s3_server: S3Server, bucket: str
) -> None:
    with in_front_of(s3_server.url) as proxy:
        store = Store(f"s3a://{bucket}/lake", access(proxy.url))
        store.write_new("p/there", b"1")
        proxy.fault = from_the(1, how)
        for ask in (
            lambda: store.write_new("p/new", b""),
            lambda: store.write_atomic("p/new", b""),
            lambda: store.read("p/there"),
            lambda: store.list("p"),
            lambda: store.list("p", "t"),
            lambda: store.delete("p/there"),
        ):
            with pytest.raises(LakeRefused, match=word):
                ask()
        with pytest.raises(LakeRefused):  # an answer to HEAD has no word for it
            store.exists("p/there")
        proxy.fault = lambda _: None
        assert store.list("p") == ["there"]


def test_a_file_whose_upload_is_refused_is_not_staged(store: Store, s3_proxy: Proxy) -> None:
    s3_proxy.fault = from_the(2, "expired")
    for name in ("one", "two"):
        with store.create(f"p/{name}") as file:
            file.write(b"x")
    with pytest.raises(LakeRefused):
        store.sync_folders("p")
    s3_proxy.fault = lambda _: None
    assert len(store.list("p")) == 1
