"""Writes and reads the JSON files of the lake: records that begin with the number of their format.

An older reader must not take a newer file for a broken one: a manifest that "is none" would be a hole in the chain of
batches, a plan that "is none" garbage. Nor may it pass over a field that it lacks: that of a chunk says whether its
rows are merged or only compared. So whoever changes what a file holds raises its FORMAT, and goes on reading those from
OLDEST on, which lakes have: a field that came later has a default, which is what older files mean.

What has no number of its own stands in a file that has: staged rows and chunks in their manifest, a chunk that is not
claimed yet in the ledger, which has the number of its last migration. Pure.
"""

from __future__ import annotations

import json
from typing import ClassVar, Self

import msgspec

from tidemark import strict_json
from tidemark.errors import FormatIsNewer, LakeFileBroken
from tidemark.strict_json import NotStrictJson


class JsonFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record that is a file. `KIND` is what messages call it."""

    KIND: ClassVar[str]
    FORMAT: ClassVar[int] = 1
    OLDEST: ClassVar[int] = 1

    def to_json(self) -> str:
        return json.dumps({"format": self.FORMAT, **strict_json.to_builtins(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, path: str = "") -> Self:
        """The record of the file at `path`. Raises FormatIsNewer if a newer version wrote it, and LakeFileBroken, which
        is a ValueError, if the text is no complete file of a format that this version reads."""
        try:
            raw = strict_json.parse(text)
            written = raw.pop("format", None) if isinstance(raw, dict) else None
            if type(written) is not int or written < cls.OLDEST:
                raise NotStrictJson(f"it begins with no format from {cls.OLDEST} to {cls.FORMAT}")
            if written > cls.FORMAT:
                raise FormatIsNewer(kind=cls.KIND, written=written, reads=cls.FORMAT)
            return strict_json.to_record(raw, cls)
        except NotStrictJson as broken:
            raise LakeFileBroken(file=path or "A file", kind=cls.KIND, reason=broken) from None
