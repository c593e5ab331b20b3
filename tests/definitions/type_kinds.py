"""Kinds of change of what a column's values are: its type, or the type behind it."""

from __future__ import annotations

from dataclasses import replace

from tests.definitions.altered_table import AlteredTable, Column
from tests.definitions.statements import BETWEEN, Kind, Statements


def _retype(t: AlteredTable, column: Column, type_name: str, using: str = "") -> str:
    t.put(replace(column, type=type_name), column.name)
    return f"ALTER TABLE {t.here} ALTER {column.name} TYPE {type_name}{f' USING {using}' if using else ''}"


def wider_int(t: AlteredTable) -> Statements:
    column = t.one("smallint", "int")
    if column is not None:
        yield _retype(t, column, "bigint")


def wider_key(t: AlteredTable) -> Statements:
    if t.key and t.column(t.key[0]).type == "int" and not t.is_partitioned and not t.column(t.key[0]).is_fixed:
        yield _retype(t, t.column(t.key[0]), "bigint")


def wider_varchar(t: AlteredTable) -> Statements:
    columns = [c for c in t.free("varchar") if c.type == "varchar(10)"]
    if columns:
        yield _retype(t, columns[0], "varchar(20)")


def varchar_to_text(t: AlteredTable) -> Statements:
    column = t.one("varchar")
    if column is not None:
        yield _retype(t, column, "text")


def wider_numeric(t: AlteredTable) -> Statements:
    columns = [c for c in t.free("numeric") if c.type == "numeric(8,2)"]
    if columns:
        yield _retype(t, columns[0], "numeric(12,2)")


def numeric_of_other_scale(t: AlteredTable) -> Statements:
    columns = [c for c in t.free("numeric") if not c.type.endswith(",3)")]
    if columns:
        yield _retype(t, columns[0], "numeric(14,3)")


def narrower_int(t: AlteredTable) -> Statements:
    column = t.one("int", "bigint")
    if column is not None:
        yield _retype(t, column, "smallint", f"({column.name} % 100)::smallint")


def int_to_text(t: AlteredTable) -> Statements:
    columns = [c for c in t.free("int", "bigint", "smallint") if c.fills != "identity"]
    if columns:
        column = t.random.choice(columns)
        yield _retype(t, column, "text", f"'n' || {column.name}")


def text_to_int(t: AlteredTable) -> Statements:
    columns = [c for c in t.free("text", "varchar") if c.fills == "dml" and c.name != "big"]
    if columns:
        column = t.random.choice(columns)
        yield _retype(t, column, "int", f"length({column.name})")


def same_type_with_using(t: AlteredTable) -> Statements:
    column = t.one("int", "bigint")
    if column is not None:
        yield _retype(t, column, column.type, f"{column.name} + 1")


def to_a_domain(t: AlteredTable) -> Statements:
    columns = [c for c in t.free("int") if c.fills == "dml"]
    if columns:
        yield _retype(t, columns[0], f"{t.schema}.other_dom")


def from_a_domain(t: AlteredTable) -> Statements:
    column = t.one("dom", "other_dom")
    if column is not None:
        yield _retype(t, column, "int")


def value_added_to_enum(t: AlteredTable) -> Statements:
    name = t.new_name("label")
    if not t.together:  # a transaction may not use what it added
        t.labels.append(name)
    yield f"ALTER TYPE {t.schema}.mood ADD VALUE '{name}'"


def value_of_enum_renamed(t: AlteredTable) -> Statements:
    old, name = t.labels[0], t.new_name("label")
    t.labels[0] = name
    yield f"ALTER TYPE {t.schema}.mood RENAME VALUE '{old}' TO '{name}'"


def enum_renamed_and_back(t: AlteredTable) -> Statements:
    yield f"ALTER TYPE {t.schema}.mood RENAME TO feeling"
    yield f"ALTER TYPE {t.schema}.feeling RENAME TO mood"


def constraint_of_domain(t: AlteredTable) -> Statements:
    name = t.new_name("limit")
    yield f"ALTER DOMAIN {t.schema}.dom ADD CONSTRAINT {name} CHECK (VALUE > -9)"
    yield BETWEEN
    yield f"ALTER DOMAIN {t.schema}.dom DROP CONSTRAINT {name}"


def attribute_added(t: AlteredTable) -> Statements:
    name = t.new_name("x")
    t.attributes.append(name)
    yield f"ALTER TYPE {t.schema}.pair ADD ATTRIBUTE {name} int"


def attribute_dropped(t: AlteredTable) -> Statements:
    if len(t.attributes) > 1:
        yield f"ALTER TYPE {t.schema}.pair DROP ATTRIBUTE {t.attributes.pop()}"


def attribute_renamed(t: AlteredTable) -> Statements:
    old, name = t.attributes[0], t.new_name("x")
    t.attributes[0] = name
    yield f"ALTER TYPE {t.schema}.pair RENAME ATTRIBUTE {old} TO {name}"


KINDS: tuple[Kind, ...] = (
    wider_int,
    wider_key,
    wider_varchar,
    varchar_to_text,
    wider_numeric,
    numeric_of_other_scale,
    narrower_int,
    int_to_text,
    text_to_int,
    same_type_with_using,
    to_a_domain,
    from_a_domain,
    value_added_to_enum,
    value_of_enum_renamed,
    enum_renamed_and_back,
    constraint_of_domain,
    attribute_added,
    attribute_dropped,
    attribute_renamed,
)
