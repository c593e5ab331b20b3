"""How far a generation's staging was cleaned up, beside its batches: `RetiredFile` <-> retired.json.

Written after the ledger marked what is retired and before the first file goes, and only ever moved ahead: a ledger that
was restored from before a clean-up, or lost, learns from it what cannot come back and need not. Every batch that ends
at or below `up_to` is applied to every table, but for those in `kept`, of which some is still to be applied, or is
evidence of an open backfill. Pure: reading and writing the JSON is `staging.store`'s business.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tidemark.formats import format_version
from tidemark.lsn import Lsn

FORMAT = 1
OLDEST = 1


@dataclass(frozen=True, slots=True)
class RetiredFile:
    """`max_xid` is the highest transaction id of what was retired, None if that held no change: a snapshot whose
    xmin is not above it may need what is gone. `kept` are tables that keep files below `up_to`."""

    pipeline: str
    generation: int
    up_to: Lsn
    max_xid: int | None
    kept: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self), "up_to": str(self.up_to)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> RetiredFile:
        """Raises ValueError if the text is no such file of a known format, FormatIsNewer if a newer version wrote
        it."""
        try:
            raw = json.loads(text)
            format_version.require("file of a clean-up", raw.pop("format"), oldest=OLDEST, newest=FORMAT)
            return cls(**{**raw, "up_to": Lsn.parse(raw["up_to"]), "kept": tuple(raw["kept"])})
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as broken:
            raise ValueError(f"not a complete retired.json ({type(broken).__name__})") from None
