"""The two messages around a chunk's SELECT: `Watermark` <-> the content of a transactional logical message (R7).

The low one is the audit of the window; the high one says that all evidence has arrived once it is staged. They are
recognised by their content in the stream, never by an LSN. The attempt is part of it: a watermark of a dead attempt
claims nothing. Anybody can write such a message, so a content that is not exactly of this form is no watermark, and
no content makes `parse` raise. Pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal
from uuid import UUID

KIND: Final = "watermark"

# More than the longest of ours: names of 64 bytes each, every byte of which JSON may write as six.
LONGEST_BYTES: Final = 4096

_TEXTS: Final = ("kind", "side", "pipeline", "backfill", "table", "chunk", "attempt")


@dataclass(frozen=True, slots=True)
class Watermark:
    side: Literal["low", "high"]
    pipeline: str
    generation: int
    backfill: str
    table: str
    chunk: str
    attempt: str

    def content(self) -> str:
        return json.dumps({"kind": KIND, **asdict(self)})

    @classmethod
    def parse(cls, content: bytes) -> Watermark | None:
        """None if the content is no watermark: another kind of message, one of another version, or anything else."""
        if len(content) > LONGEST_BYTES:
            return None
        try:
            raw: Any = json.loads(content)
            # What only looks like text, half of a surrogate pair, is none for the ledger and the log.
            json.dumps(raw, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None
        if not isinstance(raw, dict) or set(raw) != {*_TEXTS, "generation"} or type(raw["generation"]) is not int:
            return None
        if not all(isinstance(raw[name], str) and "\0" not in raw[name] for name in _TEXTS):
            return None
        if raw.pop("kind") != KIND or raw["side"] not in ("low", "high") or not _is_uuid(raw["attempt"]):
            return None
        return cls(**raw)


def _is_uuid(text: str) -> bool:
    """Whether this is a UUID as the ledger writes it."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
