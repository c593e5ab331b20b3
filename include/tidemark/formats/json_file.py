"""Writes and reads the JSON files of the lake: records that begin with the number of their format.

A reader must distinguish a newer file from a broken one: a skipped manifest would be a hole in the chain of batches. It
must not ignore an unknown field either: one field of a chunk decides whether its rows are merged or only compared. So a
change of a file's contents raises its FORMAT. Formats from OLDEST on stay readable: a later field has a default, which
is the meaning of older files.

Data without a number is listed in a file with one: staged rows and chunks in their manifest. A chunk that is not
claimed is in the ledger, which has the number of its last migration. Pure.
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
