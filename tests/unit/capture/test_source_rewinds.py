"""How long a server may take to say whether it has a heartbeat, and what is taken for one."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.capture.continuity import source_rewinds
from tidemark.config import Bounds
from tidemark.errors import GenerationStale
from tidemark.lsn import Lsn


class SilentStream:
    """A server that reads WAL from long ago, for which no test has the time."""

    pid = 7
    sent_lsn = Lsn(0)

    def __init__(self) -> None:
        self.clock = 0.0

    def read(self, max_bytes: int, wait_s: float) -> list[bytes]:
        self.clock += 50
        return []

    def silent_s(self) -> float:
        return self.clock


def asked(monkeypatch: pytest.MonkeyPatch, positions: Iterator[int], at_work: Iterable[bool] = ()) -> float:
    stream: Any = SilentStream()
    monkeypatch.setattr(source_rewinds, "sent_by", lambda *_: Lsn(next(positions)))
    looks = iter(at_work)
    monkeypatch.setattr(source_rewinds, "is_at_work", lambda *_: next(looks, False))
    config: Any = SimpleNamespace(slot="s", bounds=Bounds())
    generation: Any = SimpleNamespace(number=1)
    source: Any = None
    with pytest.raises(GenerationStale, match="did not say"):
        source_rewinds._has_heartbeat(stream, source, config, generation, Lsn(1000), "attempt")
    return float(stream.clock)


def test_a_server_that_gets_on_is_waited_for_and_one_that_stands_still_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, iter([10, 10])) < asked(monkeypatch, iter([10, 20, 30, 30]))


def test_a_server_that_is_at_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, repeat(10)) < asked(monkeypatch, repeat(10), [True, True])


def test_a_server_that_hangs_at_its_work_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_rewinds, "LONGEST_WORK_S", 1000.0)
    assert asked(monkeypatch, repeat(10), repeat(True)) < 2000


def test_a_strangers_message_that_is_nested_too_deeply_is_no_heartbeat() -> None:
    content = b"[" * 4000
    message = b"M" + struct.pack(">BQ", 1, 0) + b"tidemark\0" + struct.pack(">I", len(content)) + content
    assert not source_rewinds._is_heartbeat(message, "attempt")
