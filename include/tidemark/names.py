"""Converts names of PostgreSQL tables to ids in SQL's spelling, to folder names, and to quoted Spark identifiers.

A table's id is its name in SQL's spelling, quoted where that needs it: `shop.orders`, `"Legacy CRM"."Order.Items"`. It
is what ledger, manifests, messages and people use. PostgreSQL allows every character but NUL in a name. Object stores,
URIs, Hive and shells give many of them a meaning, and some file systems ignore case, so folders have a spelling of
their own (`folder`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

_BARE = re.compile(r"[a-z_][a-z0-9_]*")
_QUOTED = r'"((?:[^"]|"")+)"'
_PART = rf'(?:(U&)?{_QUOTED}|([^".~]+))'
_ID = re.compile(rf"{_PART}\.{_PART}(?:~([1-9][0-9]*))?")
_ESCAPE = re.compile(r"\\(?:(\\)|\+([0-9A-F]{6})|([0-9A-F]{4}))")
_KEPT = re.compile(r"[A-Za-z0-9_]")

# File systems and HDFS take 255 bytes as one name. What follows a folder's name, as a place, needs some of them.
LONGEST_FOLDER: Final = 200

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


def folder(name: str) -> str:
    """The folder of a name: letters, digits and "_" stay, every other byte becomes "-" and two hexadecimal digits. Of a
    name with capitals "." and a number follow, whose bits tell which characters they are: no two folders differ in
    case alone, and none has a character that a URI, Hive or a shell gives a meaning to."""
    kept = "".join(c if _KEPT.fullmatch(c) else "".join(f"-{byte:02x}" for byte in c.encode()) for c in name)
    if kept == "_delta_log":  # would make the folder around it a Delta table
        kept = "-5fdelta_log"
    capitals = sum(1 << place for place, c in enumerate(name) if "A" <= c <= "Z")
    return shortened(f"{kept}.{capitals}" if capitals else kept)


def shortened(name: str) -> str:
    """A folder's name that is too long for a file system: its beginning, "-h" and a digest of the whole. No byte is
    encoded as "-h…", so no other name has this folder."""
    if len(name) <= LONGEST_FOLDER:
        return name
    return f"{name[: LONGEST_FOLDER - 34]}-h{sha256(name.encode()).hexdigest()[:32]}"


def spelled(name: str) -> str:
    """One name as SQL spells it, quoted where that needs it. Characters that no terminal should get are escaped."""
    if _BARE.fullmatch(name):
        return name
    quoted = name.replace('"', '""')
    if name.isprintable():
        return f'"{quoted}"'
    return f'U&"{"".join(map(_escaped, quoted))}"'


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\{code:04X}" if code <= 0xFFFF else f"\\+{code:06X}"


def _unescaped(found: re.Match[str]) -> str:
    return "\\" if found[1] else chr(int(found[2] or found[3], 16))


def _named(escapes: str | None, quoted: str | None, bare: str | None) -> str:
    if quoted is None:
        return bare or ""
    name = quoted.replace('""', '"')
    return _ESCAPE.sub(_unescaped, name) if escapes else name


class TableName(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A table of the source, or one of the places that its name has in the lake. `str()` gives its id, the name in
    SQL's spelling: the key in ledger, manifest and plan, and what people see and type. The first table of a name has
    the place 1, which is not written; another one of that name is "schema.table~2"."""

    schema: str
    name: str
    place: int = 1

    @classmethod
    def parse(cls, text: str) -> TableName:
        """The reverse of `str()`. What is not quoted is taken letter by letter, as in the pipeline file. Raises
        ValueError if the text is no name of a table."""
        found = _ID.fullmatch(text)
        if found is None:
            raise ValueError(f"not the name of a table: {text!r} (expected schema.table)")
        return cls(_named(*found.group(1, 2, 3)), _named(*found.group(4, 5, 6)), int(found[7] or 1))

    def __str__(self) -> str:
        return f"{spelled(self.schema)}.{spelled(self.name)}{self._place}"

    @property
    def path(self) -> str:
        """Where the table lies below `current/` and `history/` of the lake: "<schema>/<table>"."""
        return f"{folder(self.schema)}/{self.folder}"

    @property
    def folder(self) -> str:
        return folder(self.name) + ("" if self.place == 1 else f"-p{self.place}")

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
