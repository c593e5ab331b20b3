"""Defines the watermarks around a chunk's SELECT: `Watermark` <-> content of a logical message (R7). Pure.

The low one is the audit of the window; the high one says that all evidence has arrived once it is staged. They are
recognised by their content in the stream, never by an LSN. The attempt is part of it: a watermark of a dead attempt
claims nothing. Anybody can write such a message, so a content that is not exactly of this form is no watermark, and
no content makes `parse` raise. Pure.
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
