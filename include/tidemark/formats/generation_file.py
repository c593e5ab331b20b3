"""How a generation began, beside its batches: `GenerationFile` <-> generation.json.

Written before the ledger's row, and never deleted while the pipeline exists: with the manifests it lets a ledger that
was lost or restored from an older copy be brought level, and its number is never given again, since the Delta tables'
transactions are named by it (R5). Pure: reading and writing the JSON is `staging.store`'s business.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from tidemark.formats import format_version
from tidemark.formats.error_record import ErrorFacts
from tidemark.lsn import Lsn

FORMAT = 2  # 2: `history`, `tables`
OLDEST = 1


@dataclass(frozen=True, slots=True)
class GenerationFile:
    """`backfill_kind` is set where changes may lie between this generation and the one before; `error` is the one that
    said so. `tables` are those alone that differ, each with the keys that do, as texts that PostgreSQL reads, or None
    where any row may; without it, that is every table. `history` is that of the source's timeline."""

    pipeline: str
    number: int
    system_identifier: str
    timeline: int
    slot: str
    start_lsn: Lsn
    opened_at: str
    reason: str
    backfill_kind: str | None = None
    error: ErrorFacts | None = None
    history: str | None = None
    tables: dict[str, tuple[tuple[str, ...], ...] | None] | None = field(default=None, repr=False)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self), "start_lsn": str(self.start_lsn)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> GenerationFile:
        """Raises ValueError if the text is no such file of a known format, FormatIsNewer if a newer version wrote
        it."""
        try:
            raw = json.loads(text)
            format_version.require("file of a generation", raw.pop("format"), oldest=OLDEST, newest=FORMAT)
            error, tables = raw.get("error"), raw.get("tables")
            if tables is not None:
                tables = {t: None if keys is None else tuple(map(tuple, keys)) for t, keys in tables.items()}
            return cls(
                **{
                    **raw,
                    "start_lsn": Lsn.parse(raw["start_lsn"]),
                    "error": None if error is None else ErrorFacts.from_json(error),
                    "tables": tables,
                }
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as broken:
            raise ValueError(f"not a complete generation.json ({type(broken).__name__})") from None
