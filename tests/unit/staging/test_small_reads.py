"""Reads that are under way at the same time: in order, never too many, and not one error swallowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemark.storage.small_reads import READERS, read_ahead

WAIT_S = 60.0


def test_what_is_read_comes_in_order_and_several_are_read_at_the_same_time() -> None:
    together = threading.Barrier(READERS)

    def read(number: int) -> int:
        together.wait(WAIT_S)
        return number

    assert list(read_ahead(read, range(3 * READERS))) == list(range(3 * READERS))


def test_no_more_are_begun_than_are_looked_at_soon() -> None:
    begun = []

    def names() -> Iterator[int]:
        for number in range(10 * READERS):
            begun.append(number)
            yield number

    reads = read_ahead(str, names())
    for looked_at in range(1, 5):
        next(reads)
        assert len(begun) == looked_at + READERS


def test_what_fails_is_raised_at_its_place() -> None:
    def read(number: int) -> int:
        if number == 2:
            raise FileNotFoundError(str(number))
        return number

    reads = read_ahead(read, range(100))
    assert [next(reads), next(reads)] == [0, 1]
    with pytest.raises(FileNotFoundError, match="2"):
        next(reads)


def test_whoever_stops_before_the_end_waits_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way ends when somebody waits for it, and not before."""
    begun, ended, is_waited_for = list[int](), list[int](), threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def waited_for(pool: ThreadPoolExecutor, wait: bool = True, **options: bool) -> None:
        if wait:
            is_waited_for.set()
        shutdown(pool, wait, **options)

    def read(number: int) -> int:
        begun.append(number)
        if number:
            assert is_waited_for.wait(WAIT_S)
        ended.append(number)
        return number

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", waited_for)
    reads = read_ahead(read, range(10 * READERS))
    try:
        assert next(reads) == 0
        reads.close()
        assert sorted(begun) == sorted(ended)
        assert len(begun) <= READERS + 1
    finally:
        is_waited_for.set()
