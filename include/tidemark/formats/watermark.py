"""Defines the watermarks around a chunk's SELECT: `Watermark` <-> content of a logical message (R7). Pure.

Once the high one is staged, all evidence for the chunk has arrived; the low one documents the window. They are
recognised by their content, never by an LSN. The content has the attempt, so a dead attempt's watermark claims nothing.
Any login can write such messages, so `parse` accepts only exactly this form and never raises. Pure.
"""

from __future__ import annotations

import json
from typing import Final, Literal
from uuid import UUID

from tidemark import strict_json
from tidemark.strict_json import JsonRecord

# More than the longest of ours: names of 64 bytes each, every byte of which JSON may write as six.
LONGEST_BYTES: Final = 4096


class Watermark(JsonRecord, frozen=True, tag_field="kind", tag="watermark"):
    side: Literal["low", "high"]
    pipeline: str
    generation: int
    backfill: str
    table: str
    chunk: str
    attempt: str

    def content(self) -> str:
        return json.dumps(self.to_json())

    @classmethod
    def parse(cls, content: bytes) -> Watermark | None:
        """None if the content is no watermark: another kind of message, one of another version, or anything else."""
        if len(content) > LONGEST_BYTES:
            return None
        try:
            mark = cls.from_json(strict_json.parse(content))
            texts = [value for value in mark.to_json().values() if isinstance(value, str)]
            # What only looks like text, half of a surrogate pair, is none for the ledger and the log.
            "".join(texts).encode()
        except ValueError:
            return None
        return None if any("\0" in text for text in texts) or not _is_uuid(mark.attempt) else mark


def _is_uuid(text: str) -> bool:
    """Whether this is a UUID as the ledger writes it."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
