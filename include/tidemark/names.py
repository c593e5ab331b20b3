"""Converts names of PostgreSQL tables to a text id, to folder names, and to quoted Spark identifiers.

PostgreSQL allows every character but NUL in a name, object stores and Delta paths do not. So a name is percent-encoded
wherever it becomes part of a path, and the dot that separates schema and table is the only bare dot of an id: "a.b"."c"
and "a"."b.c" stay two tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_PLACE = re.compile(r"[1-9][0-9]*")

# What a staged change and a row of `history` have before the source's columns, with the Delta types, and behind them.
CHANGE_COLUMNS = {
    "_generation": "int",
    "_commit_lsn": "bigint",
    "_ordinal": "bigint",
    "_xid": "bigint",
    "_committed_at": "timestamp",
    "_op": "string",
}
# Its place among the changes of a generation (R1).
ORDER_COLUMNS = ("_commit_lsn", "_ordinal")
MARK_COLUMNS = {"_unchanged": "array<string>", "_text": "map<string,string>"}

# What a row of `current` has behind them: of the change that touched it last, and of a table with a key its columns
# whose value is known nowhere.
ROW_COLUMNS = {name: CHANGE_COLUMNS[name] for name in ("_commit_lsn", "_committed_at")}
ROW_HOLES = "_holes"

# Columns that Tidemark adds to `history`, `current` or staging; preflight refuses a source column of the same name.
METADATA_COLUMNS = (*CHANGE_COLUMNS, *MARK_COLUMNS, "_old_key", "_old", ROW_HOLES)

# A key of `_text` is a column's name; that of a value from `_old_key`, or from an update's `_old`, has this before it.
OLD_KEY_PREFIX = "_old_key."
OLD_PREFIX = "_old."


# What Delta's MERGE takes for the facts of a file, and what a merge calls its own columns while it works.
FILE_METADATA = "_metadata"
WORKING_PREFIX = "__tidemark_"

# In what Spark hands to Hadoop, a file's schema among it, Hadoop puts the value of such a property in its place, if its
# process has one: of a staged column "${user.name}" Spark would find nothing, and read NULL.
_PROPERTY = re.compile(r"\$\{[^}$ ]+\}")


def is_taken(column: str) -> bool:
    """Whether Tidemark needs this name for itself, in whatever case, or Hadoop reads another one in its place."""
    return _PROPERTY.search(column) is not None or any(
        folded in (*METADATA_COLUMNS, FILE_METADATA) or folded.startswith((OLD_KEY_PREFIX, OLD_PREFIX, WORKING_PREFIX))
        for folded in folded_names(column)
    )


def folded_names(name: str) -> tuple[str, str]:
    """The name as Spark may compare it, which ignores case in two ways: by `toLowerCase` of the whole, and by
    `equalsIgnoreCase`, letter by letter through the upper case. To the second "ſ" is an s, "ı" an i and the Kelvin
    sign a k."""
    return name.lower(), "".join(_folded(letter) for letter in name)


def _folded(letter: str) -> str:
    """Java's Character.toLowerCase(Character.toUpperCase(c)); a letter whose other case is several letters has none."""
    upper = letter.upper()
    if len(upper) != 1:
        upper = letter
    # Of all letters, the lower case of this one alone is two in Python and one in Java.
    lower = "i" if upper == "\u0130" else upper.lower()
    return lower if len(lower) == 1 else upper


def alike(names: Iterable[str]) -> list[list[str]]:
    """The groups of names that Spark does not tell apart."""
    group_of: dict[str, list[str]] = {}
    for name in names:
        group = [name]
        for folded in folded_names(name):
            other = group_of.setdefault(folded, group)
            if other is not group:
                other += group
                group_of.update({key: other for key, members in group_of.items() if members is group})
                group = other
    return [group for group in {id(group): group for group in group_of.values()}.values() if len(group) > 1]


def encode(name: str) -> str:
    """Percent-encode one name for a path: letters, digits, "_" and "-" stay, every other byte becomes %XX."""
    return "".join(c if _PLAIN.fullmatch(c) else "".join(f"%{b:02X}" for b in c.encode()) for c in name)


def _folder(name: str) -> str:
    """A folder with the name of Delta's log would make the one around it a Delta table, to whose log it belongs."""
    encoded = encode(name)
    return f"%5F{encoded[1:]}" if encoded == "_delta_log" else encoded


class TableName(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A table of the source, or one of the places that its name has in the lake. `str()` gives its id, "schema.table"
    percent-encoded: the key in ledger, manifest and plan. The first table of a name has the place 1, which is not
    written; another one of that name is "schema.table~2"."""

    schema: str
    name: str
    place: int = 1

    @classmethod
    def parse(cls, table_id: str) -> TableName:
        """The reverse of `str()`. Raises ValueError if the text is not an id."""
        schema, dot, name = table_id.partition(".")
        name, tilde, place = name.partition("~")
        if not (schema and dot and name) or "." in name or (tilde and not _PLACE.fullmatch(place)):
            raise ValueError(f"not a table id: {table_id!r} (expected schema.table)")
        return cls(unquote(schema), unquote(name), int(place or 1))

    def __str__(self) -> str:
        return f"{encode(self.schema)}.{encode(self.name)}{self._place}"

    @property
    def path(self) -> str:
        """Where the table lies below `current/` and `history/` of the lake: "<schema>/<table>"."""
        return f"{_folder(self.schema)}/{_folder(self.name)}{self._place}"

    @property
    def shown(self) -> str:
        """As people see it and may type it, without quotes: two tables whose names hold dots can look alike."""
        return f"{self.schema}.{self.name}{self._place}"

    @property
    def at_source(self) -> TableName:
        """The name alone, as the source has it."""
        return TableName(self.schema, self.name)

    @property
    def exact(self) -> str:
        """The id with its place, also the first: no name of another table."""
        return f"{self.at_source}~{self.place}"

    @property
    def _place(self) -> str:
        return "" if self.place == 1 else f"~{self.place}"


def spark_identifier(name: str) -> str:
    """Quote a column name for Spark SQL; the one place where Spark identifiers are quoted."""
    return "`" + name.replace("`", "``") + "`"
