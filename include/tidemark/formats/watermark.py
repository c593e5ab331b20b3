"""The two messages around a chunk's SELECT: `Watermark` <-> the content of a transactional logical message (R7).

The low one is the audit of the window; the high one says that all evidence has arrived once it is staged. They are
recognised by their content in the stream, never by an LSN. The attempt is part of it: a watermark of a dead attempt
claims nothing. Pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

KIND: Final = "watermark"


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
        """None where the content is no watermark: another kind of message, or one of another version."""
        try:
            raw: Any = json.loads(content)
            if not isinstance(raw, dict) or raw.pop("kind", None) != KIND or raw.get("side") not in ("low", "high"):
                return None
            return cls(**raw)
        except (ValueError, TypeError):
            return None
