"""Converts names of PostgreSQL tables to ids, folder names and Spark identifiers, and defines Tidemark's column names.

A table's id is its name in SQL's spelling, quoted where SQL requires it: `shop.orders`, `"Legacy CRM"."Order.Items"`.
Ledger, manifests, messages and people use it. PostgreSQL allows every character but NUL in a name. Object stores, URIs,
Hive and shells give many of them a meaning, and some file systems ignore case, so folders have a spelling of their own
(`folder`).
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

# File systems and HDFS allow 255 bytes per name. The suffix of a folder's name, such as its place, needs some of them.
LONGEST_FOLDER: Final = 200

# The columns of a staged change and of a row of `history` before the source's columns, with their Delta types.
# MARK_COLUMNS are those after the source's columns.
CHANGE_COLUMNS = {
    "_generation": "int",
    "_commit_lsn": "bigint",
    "_ordinal": "bigint",
    "_xid": "bigint",
    "_committed_at": "timestamp",
    "_op": "string",
}
# The order of the changes of a generation (R1).
ORDER_COLUMNS = ("_commit_lsn", "_ordinal")
MARK_COLUMNS = {"_unchanged": "array<string>", "_text": "map<string,string>"}

# The columns of a row of `current` after the source's columns: two of the row's last change, and in a table with a key
# the names of the columns whose value is known nowhere (holes).
ROW_COLUMNS = {name: CHANGE_COLUMNS[name] for name in ("_commit_lsn", "_committed_at")}
ROW_HOLES = "_holes"

# Columns that Tidemark adds to `history`, `current` or staging; preflight refuses a source column of the same name.
METADATA_COLUMNS = (*CHANGE_COLUMNS, *MARK_COLUMNS, "_old_key", "_old", ROW_HOLES)

# A key of `_text` is a column's name. For a value from `_old_key`, or from an update's `_old`, it has this prefix.
OLD_KEY_PREFIX = "_old_key."
OLD_PREFIX = "_old."


# Delta's MERGE adds a column of the first name. A merge's own temporary columns have the second as prefix.
FILE_METADATA = "_metadata"
WORKING_PREFIX = "__tidemark_"

# Hadoop replaces such a text by the value of the Java property, also in a file's schema, which Spark passes to it. So
# Spark would not find a staged column "${user.name}", and would read NULL.
_PROPERTY = re.compile(r"\$\{[^}$ ]+\}")


def is_reserved(column: str) -> bool:
    """Whether a source column cannot have this name: Tidemark or Delta uses it, in any case, or Hadoop would replace
    it."""
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
    """Java's Character.toLowerCase(Character.toUpperCase(c)). A letter that becomes several letters stays as it is."""
    upper = letter.upper()
    if len(upper) != 1:
        upper = letter
    # The only letter whose lower case is two characters in Python and one in Java.
    lower = "i" if upper == "\u0130" else upper.lower()
    return lower if len(lower) == 1 else upper


def alike(names: Iterable[str]) -> list[list[str]]:
    """The groups of names that Spark takes for one name, because it ignores case."""
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
    """The folder of a name. Letters, digits and "_" stay; every other byte becomes "-" and two hexadecimal digits.

    If the name has capitals, "." and a number follow. The number's bits are the positions of the capitals, so no two
    folders differ in case alone. No folder has a character that has a meaning in a URI, in Hive or in a shell.
    """
    kept = "".join(c if _KEPT.fullmatch(c) else "".join(f"-{byte:02x}" for byte in c.encode()) for c in name)
    if kept == "_delta_log":  # would make the folder around it a Delta table
        kept = "-5fdelta_log"
    capitals = sum(1 << place for place, c in enumerate(name) if "A" <= c <= "Z")
    return shortened(f"{kept}.{capitals}" if capitals else kept)


def shortened(name: str) -> str:
    """The name of a folder, shortened if it is too long for a file system: to its beginning, "-h" and a digest of the
    whole. No byte is encoded as "-h…", so no other name has this folder."""
    if len(name) <= LONGEST_FOLDER:
        return name
    return f"{name[: LONGEST_FOLDER - 34]}-h{sha256(name.encode()).hexdigest()[:32]}"


def spelled(name: str) -> str:
    """One name in SQL's spelling, quoted where SQL requires it. Characters that are not printable are escaped."""
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
    """A table's name at the source, and its place: the number of the table among those that had this name.

    `str()` is the table's id: the key in ledger, manifest and plan, and the text that people read and type. The first
    table of a name has the place 1, which is not written. The second table of that name is "schema.table~2".
    """

    schema: str
    name: str
    place: int = 1

    @classmethod
    def parse(cls, text: str) -> TableName:
        """The reverse of `str()`. A part without quotes is read letter by letter, as in the pipeline file. Raises
        ValueError if the text is not the name of a table."""
        found = _ID.fullmatch(text)
        if found is None:
            raise ValueError(f"not the name of a table: {text!r} (expected schema.table)")
        return cls(_named(*found.group(1, 2, 3)), _named(*found.group(4, 5, 6)), int(found[7] or 1))

    def __str__(self) -> str:
        return f"{spelled(self.schema)}.{spelled(self.name)}{self._place}"

    @property
    def path(self) -> str:
        """The table's path below `current/` and `history/` of the lake: "<schema>/<table>"."""
        return f"{folder(self.schema)}/{self.folder}"

    @property
    def folder(self) -> str:
        return folder(self.name) + ("" if self.place == 1 else f"-p{self.place}")

    @property
    def at_source(self) -> TableName:
        """The name without the place, as the source has it."""
        return TableName(self.schema, self.name)

    @property
    def exact(self) -> str:
        """The id with its place, even if that is 1: it cannot be mistaken for another table's name."""
        return f"{self.at_source}~{self.place}"

    @property
    def _place(self) -> str:
        return "" if self.place == 1 else f"~{self.place}"


def spark_identifier(name: str) -> str:
    """Quote a column name for Spark SQL; the one place where Spark identifiers are quoted."""
    return "`" + name.replace("`", "``") + "`"
