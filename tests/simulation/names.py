"""Random tables of random names, at a real server: every character that PostgreSQL takes in a name, and the names that
mean something to Spark, to Delta, to a file system or to a merge."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from psycopg import sql

# What is special somewhere on the way: paths, SQL, JSON, globs, case folding, normal forms, directions, controls.
LETTERS: Final = (
    *"abzAZ09_-.,;:!?*+/\\|'\"`()[]{}<>=%&#@$^~ ",
    *("\t", "\n", "\r", "\x01", "\x7f", "\u00a0", "\u200b", "\u202e", "\ufeff", "\u2028"),
    *("ä", "a\u0308", "ß", "ẞ", "İ", "ı", "ſ", "K", "σ", "ς", "日", "ا", "🐘", "𐐀", "𐐨"),
)
WORDS: Final = (
    *("_metadata", "_op", "_OP", "_commit_lſn", "_text", "_old.x", "_old_key.x", "_before", "__tidemark_row", "_old"),
    *("_change_type", "_commit_version", "_row_id", "_delta_log", "_temporary", "_SUCCESS", ".hidden", "..", ".", "~"),
    *("s", "ſ", "S", "k", "K", "i", "I", "ı", "İ", "select", "null", "true", "value", "key", "element", "a.b", "a`b"),
    *("current", "history", "staging", "part=1", "x=y", "%41", "%2E", "A", "a", "NULL", "__HIVE_DEFAULT_PARTITION__"),
)
LONGEST: Final = 63  # bytes


@dataclass(frozen=True, slots=True)
class NamedTable:
    schema: str
    name: str
    columns: tuple[str, ...]
    full: bool

    @property
    def quoted(self) -> str:
        return sql.Identifier(self.schema, self.name).as_string(None)

    def create(self) -> str:
        """The first column is the key, unless the table is to be kept by whole rows."""
        columns = [sql.Identifier(column).as_string(None) for column in self.columns]
        key = "" if self.full else f", PRIMARY KEY ({columns[0]})"
        types = ["text" if n else "int" for n in range(len(columns))]
        shape = ", ".join(f"{column} {of}" for column, of in zip(columns, types, strict=True))
        full = f"; ALTER TABLE {self.quoted} REPLICA IDENTITY FULL" if self.full else ""
        return f"CREATE TABLE {self.quoted} ({shape}{key}){full}"

    def insert(self, key: int) -> str:
        values = ", ".join([str(key), *(f"'{n} of {key}'" for n in range(1, len(self.columns)))])
        return f"INSERT INTO {self.quoted} VALUES ({values})"

    def update(self, key: int) -> str:
        first = sql.Identifier(self.columns[0]).as_string(None)
        last = sql.Identifier(self.columns[-1]).as_string(None)
        value = str(key + 100) if len(self.columns) == 1 else "'changed'"
        return f"UPDATE {self.quoted} SET {last} = {value} WHERE {first} = {key}"

    def move(self, key: int) -> str:
        first = sql.Identifier(self.columns[0]).as_string(None)
        return f"UPDATE {self.quoted} SET {first} = {key} + 1000 WHERE {first} = {key}"

    def delete(self, key: int) -> str:
        return f"DELETE FROM {self.quoted} WHERE {sql.Identifier(self.columns[0]).as_string(None)} = {key}"


def name(random: Random) -> str:
    if random.random() < 0.4:
        word = random.choice(WORDS)
    elif random.random() < 0.2:
        word = random.choice(LETTERS) * LONGEST
    else:
        word = "".join(random.choices(LETTERS, k=random.randint(1, 20)))
    while len(word.encode()) > LONGEST:
        word = word[:-1]
    return word


def tables(random: Random, count: int) -> list[NamedTable]:
    """Tables whose names differ; columns of one table may differ in what only PostgreSQL tells apart."""
    schemas = [word for word in {name(random) for _ in range(6)} if not word.startswith("pg_")]
    pairs = {(random.choice(sorted(schemas)), name(random)) for _ in range(count)}
    return [
        NamedTable(schema, table, tuple(dict.fromkeys(name(random) for _ in range(random.randint(1, 5)))), full)
        for schema, table in sorted(pairs)
        for full in [random.random() < 0.25]
    ]
