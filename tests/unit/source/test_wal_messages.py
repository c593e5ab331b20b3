"""Which messages of a stream change nothing for a pipeline."""

from __future__ import annotations

import json
import struct

import pytest

from tidemark.formats.watermark import Watermark
from tidemark.source.wal.wal_messages import PREFIX, is_quiet

SKIP = 25


def message(content: str, prefix: str = PREFIX) -> bytes:
    said = content.encode()
    return (
        bytes(SKIP) + struct.pack(">cBq", b"M", 1, 16) + prefix.encode() + b"\0" + struct.pack(">i", len(said)) + said
    )


def heartbeat(pipeline: str) -> bytes:
    return message(json.dumps({"kind": "heartbeat", "pipeline": pipeline, "generation": 1, "attempt": "a"}))


def watermark(pipeline: str) -> bytes:
    attempt = "0a9f2f9e-0000-4000-8000-000000000000"
    return message(Watermark("high", pipeline, 1, "b", "s.t", "1", attempt).content())


@pytest.mark.parametrize(
    ("payload", "quiet"),
    [
        *((bytes(SKIP) + kind + bytes(20), True) for kind in (b"B", b"C", b"O")),
        *((bytes(SKIP) + kind + bytes(20), False) for kind in (b"R", b"Y", b"I", b"U", b"D", b"T")),
        (heartbeat("shop"), True),
        (heartbeat("stock"), True),
        (watermark("stock"), True),
        (watermark("shop"), False),
        (message("no JSON"), False),
        (message("[1]"), False),
        (message(json.dumps({"kind": "heartbeat"}), "tidemark_definition"), False),
    ],
)
def test_only_what_changes_nothing_for_the_pipeline_is_quiet(payload: bytes, quiet: bool) -> None:
    assert is_quiet(payload, SKIP, "shop") is quiet
