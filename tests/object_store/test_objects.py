"""The lake root in a bucket of a real S3 server: what is put is put once, whole, or not at all, whatever happens to
requests and their answers.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.s3_proxy import PASSING, Fault, Proxy, Request, one_in
from tests.support.s3_server import S3Server, access
from tidemark.errors import LakeRefused, LakeUnreachable
from tidemark.storage import object_store
from tidemark.storage.store import Store


def test_what_was_written_is_read_listed_and_deleted(store: Store) -> None:
    with store.create("p/a/one.bin") as file:
        file.write(b"one")
    store.sync_folders("p/a")
    store.write_new("p/a/two.json", b"{}")
    store.write_atomic("p/a/two.json", b"[]")

    assert store.read("p/a/one.bin") == b"one"
    assert store.read("p/a/two.json") == b"[]"
    assert store.size("p/a/one.bin") == 3
    assert store.list("p/a") == ["one.bin", "two.json"]
    assert store.list("p") == ["a"]
    store.delete("p/a")
    assert store.list("p/a") == []
    assert not store.exists("p/a/two.json")
    store.delete("p/a")


def test_what_is_not_there_is_not_found_and_a_bucket_that_is_not_there_is_an_error(
    store: Store, s3_proxy: Proxy
) -> None:
    assert store.list("nowhere") == []
    with pytest.raises(FileNotFoundError):
        store.read("nowhere")
    lost = Store("s3a://no-such-bucket/lake", access(s3_proxy.url))
    with pytest.raises(LakeRefused, match="no such bucket"):
        lost.write_new("x", b"")
    with pytest.raises(LakeRefused, match="no such bucket"):
        lost.read("x")


def test_a_listing_from_a_name_on_holds_that_name_and_what_is_above(store: Store) -> None:
    for name in ("00A-x/one.bin", "00B-x/one.bin", "00B-x/two.bin", "00C/a/b.bin", "00D"):
        store.write_new(f"p/{name}", b"")
    assert store.list("p", "00B") == ["00B-x", "00C", "00D"]
    assert store.list("p", "00C") == ["00C", "00D"]
    assert store.list("p", "00D") == ["00D"]
    assert store.list("p", "00E") == []
    assert store.list("nowhere", "00A") == []


def test_two_levels_are_listed_by_one_request(store: Store, s3_proxy: Proxy) -> None:
    for name in ("g1/00A-x/one.bin", "g2/generation.json", "g2/00A-x/one.bin", "g2/00B-x/one.bin", "g3/00A-x/v/a.bin"):
        store.write_new(f"p/{name}", b"")
    s3_proxy.forget()
    assert store.list_from("p", "g2", "00B") == {"g2": ["00B-x", "generation.json"], "g3": ["00A-x"]}
    assert s3_proxy.counted() == {"LIST": 1}
    assert store.list_from("p", "g4", "00A") == {}


def test_a_file_is_never_replaced(store: Store) -> None:
    store.write_new("p/one.bin", b"first")
    with pytest.raises(FileExistsError):
        store.write_new("p/one.bin", b"second")
    with store.create("p/one.bin") as file:
        file.write(b"third")
    with pytest.raises(FileExistsError):
        store.sync_folders("p")
    assert store.read("p/one.bin") == b"first"


def test_of_two_that_write_a_file_at_once_one_wins(s3_proxy: Proxy, bucket: str) -> None:
    together = threading.Barrier(2)
    s3_proxy.gate = lambda request: together.wait(30) if request.method == "PUT" else None

    def write(content: bytes) -> bytes | None:
        try:
            Store(f"s3a://{bucket}/lake", access(s3_proxy.url)).write_new("p/manifest.json", content)
        except FileExistsError:
            return None
        return content

    with ThreadPoolExecutor(2) as both:
        outcomes = list(both.map(write, (b"one", b"other")))
    (winner,) = [content for content in outcomes if content is not None]
    assert Store(f"s3a://{bucket}/lake", access(s3_proxy.url)).read("p/manifest.json") == winner


@pytest.mark.parametrize("fault", [*PASSING, "conflict"])
def test_a_put_whose_request_fails_is_made_once_and_is_known_for_ones_own(
    fault: Fault, store: Store, s3_proxy: Proxy
) -> None:
    def break_one(request: Request) -> Fault | None:
        return fault if request.method == "PUT" and not s3_proxy.broken else None

    s3_proxy.fault = break_one
    store.write_new("p/manifest.json", b"{}")
    assert [way for way, _ in s3_proxy.broken] == [fault]
    assert store.read("p/manifest.json") == b"{}"


def test_a_put_that_is_always_in_conflict_with_another_one_is_not_taken_for_a_lost_race(
    store: Store, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PAUSE_S", 0)
    s3_proxy.fault = lambda request: "conflict" if request.method == "PUT" else None
    with pytest.raises(LakeUnreachable, match="409 Conflict"):
        store.write_new("p/manifest.json", b"{}")
    assert len(s3_proxy.broken) == object_store.PUTS


def test_a_put_that_arrives_when_it_was_given_up_replaces_nothing(store: Store, s3_proxy: Proxy) -> None:
    s3_proxy.fault = lambda request: "late" if request.method == "PUT" and not s3_proxy.broken else None
    store.write_new("p/manifest.json", b"{}")
    assert [way for way, _ in s3_proxy.broken] == ["late"]
    assert s3_proxy.let_go() == [412]


@pytest.mark.some(2)
@pytest.mark.parametrize("fault", PASSING)
def test_whichever_request_of_a_look_breaks_it_is_asked_again(fault: Fault, store: Store, s3_proxy: Proxy) -> None:
    for nth in range(1, 11):
        numbers = itertools.count(1)
        s3_proxy.fault = lambda _, numbers=numbers, nth=nth: fault if next(numbers) == nth else None  # type: ignore[misc]
        store.check_bucket(["p/current/x", "p/history/x"])
    assert len(s3_proxy.broken) == 10
    s3_proxy.fault = lambda _: None
    assert store.list("p") == []


def test_whatever_requests_fail_every_file_is_there_once(
    store: Store, s3_proxy: Proxy, s3_server: S3Server, bucket: str
) -> None:
    s3_proxy.fault = one_in(3)
    for number in range(12):
        with store.create(f"p/{number}.bin") as file:
            file.write(b"%d" % number * 1000)
    store.sync_folders("p")
    assert len(s3_proxy.broken) >= 6
    s3_proxy.fault = lambda _: None
    written = {key: s3_server.read(bucket, key) for key in s3_server.keys(bucket)}
    assert written == {f"lake/p/{number}.bin": b"%d" % number * 1000 for number in range(12)}


def test_a_file_that_is_abandoned_is_never_seen(store: Store, s3_server: S3Server, bucket: str) -> None:
    file = store.open_new("p/half.parquet")
    file.write(b"x" * 20 * 2**20)
    file.close()
    store.sync_folders("p")
    with pytest.raises(TypeError), store.create("p/other.parquet") as other:
        other.write("not bytes")  # type: ignore[call-overload]
    store.sync_folders("p")
    assert s3_server.keys(bucket) == []
    assert s3_server.uploads(bucket) == []


def test_the_next_file_is_written_while_one_is_uploaded(store: Store, s3_proxy: Proxy) -> None:
    goes_on, waited = threading.Event(), list[bool]()
    s3_proxy.gate = lambda _: waited.append(goes_on.wait(20))
    for name in ("one", "two"):
        with store.create(f"p/{name}") as file:
            file.write(name.encode())
    goes_on.set()
    store.sync_folders("p")
    assert waited == [True, True]  # not until their time was over, as somebody would who waits for the first upload
    assert store.list("p") == ["one", "two"]


def test_a_folder_is_deleted_by_its_manifest_first(store: Store, s3_proxy: Proxy) -> None:
    for name in ("a.parquet", "manifest.json", "z.parquet"):
        store.write_new(f"p/batch/{name}", b"")

    refused = threading.Event()

    def fail(request: Request) -> Fault | None:
        if request.kind != "DELETE" or [r.kind for r in s3_proxy.requests].count("DELETE") == 1:
            return None
        refused.set()
        return "slow down"

    s3_proxy.fault = fail
    with ThreadPoolExecutor(1) as task:
        deleted = task.submit(store.delete, "p/batch")
        assert refused.wait(30)
        assert "manifest.json" not in store.list("p/batch")
        s3_proxy.fault = lambda _: None
        deleted.result(30)
    assert store.list("p/batch") == []


def test_an_answer_that_does_not_come_is_waited_for_so_long_and_no_longer(
    s3_proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "REQUEST_S", 1)
    store = Store(f"s3a://{bucket}/lake", access(s3_proxy.url))
    s3_proxy.fault = lambda request: "silent" if request.method == "PUT" and not s3_proxy.broken else None
    store.write_new("p/manifest.json", b"{}")
    assert [way for way, _ in s3_proxy.broken] == ["silent"]
    assert store.read("p/manifest.json") == b"{}"


@pytest.mark.parametrize("fault", PASSING)
def test_what_is_read_is_whole_though_its_answer_breaks(fault: Fault, store: Store, s3_proxy: Proxy) -> None:
    content = bytes(range(256)) * 4096
    store.write_new("p/file", content)
    s3_proxy.fault = lambda request: fault if request.method == "GET" and not s3_proxy.broken else None
    assert store.read("p/file") == content
    assert [way for way, _ in s3_proxy.broken] == [fault]


@pytest.mark.some(2)
@pytest.mark.parametrize("fault", PASSING)
def test_what_is_listed_and_deleted_is_all_though_an_answer_breaks(fault: Fault, store: Store, s3_proxy: Proxy) -> None:
    for name in ("one", "two"):
        store.write_new(f"p/{name}/file", b"")
    asked = (
        (lambda: store.list("p"), ["one", "two"]),
        (lambda: store.list("p", "two"), ["two"]),
        (lambda: store.delete("p/one"), None),
        (lambda: store.list("p"), ["two"]),
    )
    for ask, answer in asked:
        s3_proxy.forget()
        s3_proxy.fault = lambda _: None if s3_proxy.broken else fault
        assert ask() == answer
        assert [way for way, _ in s3_proxy.broken] == [fault]


def test_a_list_of_many_pages_is_whole_and_all_of_it_is_deleted(store: Store, s3_proxy: Proxy) -> None:
    s3_proxy.page = 2
    names = [f"{number:02}" for number in range(7)]
    for name in names:
        store.write_new(f"p/{name}/file", b"")
    assert store.list("p") == names
    assert store.list("p", "03") == names[3:]
    store.delete("p")
    assert store.list("p") == []
