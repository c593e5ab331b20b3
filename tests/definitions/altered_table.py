"""A table as its grammar knows it: which columns it has, what its key is, what may be written to it; and changes of
its rows that are valid in that state.

Each table lives in a schema of its own, with an enum, a domain and a composite type that only it has. What it holds is
not kept here: statements find their rows by query.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

BASES = ("keyed", "keyless", "partitioned", "listed")
# Bases whose publication lists its tables; the others' has all tables.
LISTED = ("listed",)
MAY_FILL = ("default", "identity")


@dataclass(frozen=True, slots=True)
class Column:
    """`fills` says who gives the column its values: "dml" does, a "default" or an "identity" may, only the server does
    ("generated", "virtual"). One that is `is_fixed` keeps its name and type: something depends on it."""

    name: str
    type: str
    fills: str = "dml"
    not_null: bool = False
    is_fixed: bool = False

    @property
    def family(self) -> str:
        """The type without modifiers and schema."""
        return self.type.partition("(")[0].rpartition(".")[2]

    @property
    def is_ordinary(self) -> bool:
        return self.fills in ("dml", *MAY_FILL)


@dataclass
class AlteredTable:
    """`schema` is where it was created; `home` and `name` are where it is now and how it is called. `identity` is that
    of the table, `index_key` the columns of the index if it is one. `leaves` are names and bounds of partitions;
    `detached` those that are none now."""

    schema: str
    base: str
    random: Random
    together: bool = False
    home: str = ""
    name: str = "t"
    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ()
    identity: str = "default"
    index_key: tuple[str, ...] = ()
    key_name: str = "t_pkey"
    has_unique_index: bool = False
    unlogged: bool = False
    labels: list[str] = field(default_factory=lambda: ["low", "mid", "high"])
    attributes: list[str] = field(default_factory=lambda: ["x", "y"])
    leaves: dict[str, tuple[int, int]] = field(default_factory=dict)
    detached: dict[str, tuple[int, int]] = field(default_factory=dict)
    unlogged_leaves: set[str] = field(default_factory=set)
    kids: list[str] = field(default_factory=list)
    parent: str = ""
    unpublished: bool = False
    numbers: int = 0
    names: int = 0

    def __post_init__(self) -> None:
        self.home = self.schema

    # --- names --------------------------------------------------------------------------------------------------------

    @property
    def here(self) -> str:
        return f"{self.home}.{self.name}"

    @property
    def only(self) -> str:
        """For statements on its own rows."""
        return self.here if self.is_partitioned else f"ONLY {self.here}"

    @property
    def is_partitioned(self) -> bool:
        return self.base == "partitioned"

    @property
    def is_listed(self) -> bool:
        return self.base in LISTED

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def new_name(self, prefix: str = "c") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    # --- columns ------------------------------------------------------------------------------------------------------

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    def put(self, column: Column, instead_of: str) -> None:
        self.columns = [column if c.name == instead_of else c for c in self.columns]

    def drop(self, name: str) -> None:
        self.columns = [c for c in self.columns if c.name != name]

    def rename(self, old: str, new: str) -> None:
        self.put(replace(self.column(old), name=new), old)
        self.key = tuple(new if name == old else name for name in self.key)
        self.index_key = tuple(new if name == old else name for name in self.index_key)

    @property
    def identity_columns(self) -> tuple[str, ...]:
        return {"default": self.key, "full": self.key, "index": self.index_key}.get(self.identity, ())

    def free(self, *families: str) -> list[Column]:
        """Ordinary columns, of these types if any are named, on which nothing depends."""
        taken = {*self.key, *self.index_key, *(c.name for c in self.columns[: self.is_partitioned])}
        return [
            c
            for c in self.columns
            if c.is_ordinary and not c.is_fixed and c.name not in taken and (not families or c.family in families)
        ]

    def one(self, *families: str) -> Column | None:
        found = self.free(*families)
        return self.random.choice(found) if found else None

    # --- rows ---------------------------------------------------------------------------------------------------------

    @property
    def can_update(self) -> bool:
        """Whether PostgreSQL lets rows change, and the stream says which."""
        if self.identity == "full":
            return not any(c.fills in ("generated", "virtual") for c in self.columns)
        return self.unlogged or bool(self.identity_columns)

    @property
    def has_current(self) -> bool:
        return self.identity == "full" or bool(self.identity_columns)

    def value(self, column: Column) -> str:
        n = self.number()
        match column.family:
            case "smallint" | "int" | "integer" | "bigint" | "dom" | "other_dom":
                return str(n)
            case "numeric":
                return f"{n}.25"
            case "mood" | "feeling":
                return f"'{self.random.choice(self.labels)}'"
            case "pair":
                return f"ROW({', '.join(f'{n}' for _ in self.attributes)})"
            case "timestamptz":
                return f"'2024-01-01 00:00:00+00'::timestamptz + interval '{n} seconds'"
            case "text" if column.name == "big":
                return f"repeat('{n % 10}', {2100 + n})"
            case _:
                return f"'v{n}'"

    def insert(self) -> str:
        written = [c for c in self.columns if c.fills == "dml" or (c.fills in MAY_FILL and self.random.random() < 0.5)]
        if not written:
            return f"INSERT INTO {self.here} DEFAULT VALUES"
        values = []
        for column in written:
            if self.is_partitioned and column.name == self.columns[0].name:
                values.append(str(self.random.choice(list(self.leaves.values()))[0] + self.number()))
            else:
                nullable = not column.not_null and column.name not in {*self.key, *self.index_key}
                values.append("NULL" if nullable and self.random.random() < 0.1 else self.value(column))
        return f"INSERT INTO {self.here} ({', '.join(c.name for c in written)}) VALUES ({', '.join(values)})"

    def changes(self) -> list[str]:
        """A few changes, each a statement: an INSERT, and where rows may change an UPDATE; now and then more."""
        if self.is_partitioned and not self.leaves:
            return []
        statements = [self.insert()]
        if not self.can_update:
            return statements
        more = [self.update, self.update, self.delete, self.move, self.insert]
        return [*statements, self.update(), *(self.random.choice(more)() for _ in range(self.random.randint(0, 2)))]

    def update(self) -> str:
        taken = {*self.key, *self.index_key, *(c.name for c in self.columns[: self.is_partitioned])}
        ordinary = [c for c in self.columns if c.is_ordinary and c.name not in taken]
        chosen = self.random.sample(ordinary, min(len(ordinary), self.random.randint(1, 2)))
        if not chosen:
            return self.insert()
        values = ", ".join(f"{c.name} = {self.value(c)}" for c in chosen if c.name != "big" or len(chosen) == 1)
        return f"UPDATE {self.only} SET {values} WHERE {self._some_row()}"

    def delete(self) -> str:
        return f"DELETE FROM {self.only} WHERE {self._some_row()}"

    def move(self) -> str:
        """A row gets another key."""
        if not self.key or self.is_partitioned or not self.column(self.key[0]).is_ordinary:
            return self.update()
        column = self.column(self.key[0])
        return f"UPDATE {self.only} SET {column.name} = {self.value(column)} WHERE {self._some_row()}"

    def _some_row(self) -> str:
        order = self.random.choice(["min", "max"])
        name = self.key[0] if self.key else "ctid"
        if self.key and self.column(name).family not in ("int", "integer", "bigint", "smallint", "text", "varchar"):
            name = "ctid"
        if name == "ctid" and self.is_partitioned:
            return "true"
        return f"{name} = (SELECT {order}({name}) FROM {self.only})"

    # --- its beginning ------------------------------------------------------------------------------------------------

    def create(self) -> str:
        s = self.schema
        self.columns = [
            Column("id", "int", not_null=self.base != "keyless"),
            Column("a", "int"),
            Column("b", "text"),
            Column("v", "varchar(10)"),
            Column("n", "numeric(8,2)"),
            Column("m", f"{s}.mood"),
            Column("d", f"{s}.dom"),
            Column("p", f"{s}.pair"),
            Column("big", "text"),
        ]
        statements = [
            f"CREATE SCHEMA {s}",
            f"CREATE TYPE {s}.mood AS ENUM ('low', 'mid', 'high')",
            f"CREATE DOMAIN {s}.dom AS int",
            f"CREATE DOMAIN {s}.other_dom AS int CHECK (VALUE > -100)",
            f"CREATE TYPE {s}.pair AS (x int, y text)",
            *self.create_table(),
        ]
        return "; ".join(statements)

    def create_table(self) -> list[str]:
        """The table with the columns that it has."""
        columns = ", ".join(f"{c.name} {c.type}{' NOT NULL' * c.not_null}" for c in self.columns)
        self.identity, self.index_key, self.unlogged, self.key_name = "default", (), False, f"{self.name}_pkey"
        self.kids, self.parent, self.unpublished, self.has_unique_index = [], "", False, False
        statements = []
        if self.base == "keyless":
            self.key = ()
            statements.append(f"CREATE TABLE {self.here} ({columns})")
            statements.append(f"ALTER TABLE {self.here} REPLICA IDENTITY FULL")
            self.identity = "full"
        else:
            self.key = (self.columns[0].name,)
            by = f" PARTITION BY RANGE ({self.key[0]})" if self.is_partitioned else ""
            statements.append(f"CREATE TABLE {self.here} ({columns}, PRIMARY KEY ({self.key[0]})){by}")
        if any((c.name, c.family) == ("big", "text") for c in self.columns):
            statements.append(f"ALTER TABLE {self.here} ALTER big SET STORAGE EXTERNAL")
        if self.is_partitioned:
            self.leaves, self.detached, self.unlogged_leaves = {}, {}, set()
            for low in (0, 1000):
                leaf = self.new_name("leaf")
                self.leaves[leaf] = (low, low + 1000)
                bounds = f"FOR VALUES FROM ({low}) TO ({low + 1000})"
                statements.append(f"CREATE TABLE {self.home}.{leaf} PARTITION OF {self.here} {bounds}")
        return statements

    def mended(self) -> list[str]:
        """What makes a table that cannot be captured now, or only its history, one that can be again."""
        statements = [f"ALTER TABLE {self.home}.{leaf} SET LOGGED" for leaf in sorted(self.unlogged_leaves)]
        if self.unlogged:
            statements.append(f"ALTER TABLE {self.here} SET LOGGED")
        if not self.has_current:
            relations = (self.here, *(f"{self.home}.{leaf}" for leaf in self.leaves))
            statements += [f"ALTER TABLE {relation} REPLICA IDENTITY FULL" for relation in relations]
            self.identity = "full"
        if not self.can_update:
            computed = [c.name for c in self.columns if c.fills in ("generated", "virtual")]
            self.columns = [c for c in self.columns if c.name not in computed]
            statements += [f"ALTER TABLE {self.here} DROP COLUMN {name}" for name in computed]
        self.unlogged, self.unlogged_leaves, self.unpublished = False, set(), False  # preflight publishes it again
        return statements
