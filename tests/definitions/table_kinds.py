"""Kinds of change of a table as a whole: its key and identity, its files, its name, its publication."""

from __future__ import annotations

from dataclasses import replace

from tests.definitions.altered_table import AlteredTable
from tests.definitions.statements import BETWEEN, Alone, Kind, Statements


def key_made_again(t: AlteredTable) -> Statements:
    if t.key:
        key = t.key
        yield _drop_key(t)
        yield BETWEEN
        yield from _add_key(t, key)


def row_lost_beside_the_key(t: AlteredTable) -> Statements:
    """While there is no key, two rows have the same one."""
    if (
        t.key
        and not t.is_partitioned
        and t.key == ("id",)
        and t.column("id").is_ordinary
        and _can_be_full(t)
        and not t.has_unique_index
    ):
        key = t.key
        t.identity = "full"
        yield f"ALTER TABLE {t.here} REPLICA IDENTITY FULL"
        yield _drop_key(t)
        others = [c.name for c in t.columns if c.name != "id" and c.is_ordinary]
        if others:
            names = ", ".join(others)
            one = f"SELECT id FROM {t.only} ORDER BY id LIMIT 1"
            yield f"INSERT INTO {t.here} (id, {names}) SELECT id, {names} FROM {t.only} WHERE id = ({one})"
            yield f"DELETE FROM {t.only} WHERE ctid = (SELECT min(ctid) FROM {t.only} WHERE id = ({one}))"
        yield from _add_key(t, key)


def key_dropped(t: AlteredTable) -> Statements:
    if t.key:
        yield _drop_key(t)


def key_added(t: AlteredTable) -> Statements:
    names = [c.name for c in t.columns if c.name == "id" and c.is_ordinary]
    if not t.key and names and not t.is_partitioned:
        yield f"DELETE FROM {t.only} WHERE id IS NULL" if t.can_update else BETWEEN
        if t.can_update:
            yield from _add_key(t, ("id",))


def key_on_other_columns(t: AlteredTable) -> Statements:
    texts, numbers = ("text", "varchar"), ("int", "integer", "bigint")
    is_number = bool(t.key) and t.column(t.key[0]).family in numbers
    families = ("int", "bigint", *texts) if is_number else texts
    others = [c for c in t.free(*families) if c.fills == "dml" and c.name != "big"]
    if t.key and others and t.can_update:
        other, old = t.random.choice(others), t.key
        value = f"{old[0]}::text" if other.family in texts else old[0]
        yield f"UPDATE {t.only} SET {other.name} = {value}"
        yield _drop_key(t)
        yield from _add_key(t, (*old, other.name) if t.is_partitioned or t.random.random() < 0.5 else (other.name,))


def _drop_key(t: AlteredTable) -> str:
    t.key = ()
    return f"ALTER TABLE {t.here} DROP CONSTRAINT {t.key_name}"


def _add_key(t: AlteredTable, key: tuple[str, ...]) -> Statements:
    t.key, t.key_name = key, t.new_name("key")
    for name in key:
        t.put(replace(t.column(name), not_null=True), name)
    yield f"ALTER TABLE {t.here} ADD CONSTRAINT {t.key_name} PRIMARY KEY ({', '.join(key)})"


def _can_be_full(t: AlteredTable) -> bool:
    """Else PostgreSQL refuses every UPDATE."""
    return not any(c.fills in ("generated", "virtual") for c in t.columns)


def _identity(t: AlteredTable, identity: str) -> Statements:
    t.identity, t.index_key = identity, ()
    for relation in (t.here, *(f"{t.home}.{leaf}" for leaf in t.leaves)):
        yield f"ALTER TABLE {relation} REPLICA IDENTITY {identity.upper()}"


def identity_full(t: AlteredTable) -> Statements:
    if t.identity != "full" and _can_be_full(t):
        yield from _identity(t, "full")


def identity_default(t: AlteredTable) -> Statements:
    if t.identity != "default":
        yield from _identity(t, "default")


def identity_nothing(t: AlteredTable) -> Statements:
    if t.identity != "nothing":
        yield from _identity(t, "nothing")


def identity_full_for_a_while(t: AlteredTable) -> Statements:
    if t.identity == "default" and _can_be_full(t):
        yield from _identity(t, "full")
        yield BETWEEN
        yield from _identity(t, "default")


def identity_by_index(t: AlteredTable) -> Statements:
    ordinary = [c for c in t.columns if c.is_ordinary and c.family in ("int", "bigint") and c.fills == "dml"]
    if ordinary and t.key and t.can_update and not t.is_partitioned:
        column = t.random.choice(ordinary)
        name = t.new_name("index")
        if column.name not in t.key:
            yield f"UPDATE {t.only} SET {column.name} = {t.key[0]}" if _is_int(t, t.key[0]) else BETWEEN
        if column.name in t.key or _is_int(t, t.key[0]):
            t.put(replace(column, not_null=True), column.name)
            yield f"ALTER TABLE {t.here} ALTER {column.name} SET NOT NULL"
            yield f"CREATE UNIQUE INDEX {name} ON {t.here} ({column.name})"
            t.identity, t.index_key, t.has_unique_index = "index", (column.name,), True
            yield f"ALTER TABLE {t.here} REPLICA IDENTITY USING INDEX {name}"


def _is_int(t: AlteredTable, name: str) -> bool:
    return t.column(name).family in ("int", "bigint", "smallint")


def unlogged(t: AlteredTable) -> Statements:
    if not t.unlogged and not t.is_partitioned and not t.is_listed:
        t.unlogged = True
        yield f"ALTER TABLE {t.here} SET UNLOGGED"


def logged(t: AlteredTable) -> Statements:
    if t.unlogged:
        t.unlogged = False
        yield f"ALTER TABLE {t.here} SET LOGGED"


def unlogged_for_a_while(t: AlteredTable) -> Statements:
    if not t.unlogged and not t.is_partitioned and not t.is_listed:
        t.unlogged = True
        yield f"ALTER TABLE {t.here} SET UNLOGGED"
        yield BETWEEN
        t.unlogged = False
        yield f"ALTER TABLE {t.here} SET LOGGED"


def vacuum_full(t: AlteredTable) -> Statements:
    yield Alone(f"VACUUM FULL {t.here}")


def cluster(t: AlteredTable) -> Statements:
    if t.key and not t.is_partitioned:
        yield f"CLUSTER {t.here} USING {t.key_name}"


def reindex(t: AlteredTable) -> Statements:
    if not t.is_partitioned:
        yield f"REINDEX TABLE {t.here}"


def truncate(t: AlteredTable) -> Statements:
    yield f"TRUNCATE {t.only}"


def rename_of_table_and_back(t: AlteredTable) -> Statements:
    old, name = t.name, t.new_name("t")
    t.name = name
    yield f"ALTER TABLE {t.home}.{old} RENAME TO {name}"
    yield BETWEEN
    t.name = old
    yield f"ALTER TABLE {t.home}.{name} RENAME TO {old}"


def rename_of_table(t: AlteredTable) -> Statements:
    old, t.name = t.name, t.new_name("t")
    yield f"ALTER TABLE {t.home}.{old} RENAME TO {t.name}"


def another_schema_and_back(t: AlteredTable) -> Statements:
    if not t.leaves and not t.detached:
        name = t.new_name(f"{t.schema}_")
        old, t.home = t.home, name
        yield f"CREATE SCHEMA {name}"
        yield f"ALTER TABLE {old}.{t.name} SET SCHEMA {name}"
        yield BETWEEN
        t.home = old
        yield f"ALTER TABLE {name}.{t.name} SET SCHEMA {old}"


def another_schema(t: AlteredTable) -> Statements:
    if not t.leaves and not t.detached and not t.kids:
        name = t.new_name(f"{t.schema}_")
        old, t.home = t.home, name
        yield f"CREATE SCHEMA {name}"
        yield f"ALTER TABLE {old}.{t.name} SET SCHEMA {name}"


def dropped_and_created(t: AlteredTable) -> Statements:
    was_unpublished = t.is_listed
    yield f"DROP TABLE {t.here} CASCADE"
    t.columns = [replace(c, fills="dml", is_fixed=False) for c in t.columns]
    if t.key:
        t.columns = sorted(t.columns, key=lambda c: c.name != t.key[0])
    if t.columns[0].family != "int":
        t.put(replace(t.columns[0], type="int"), t.columns[0].name)
    yield from t.create_table()
    t.unpublished = was_unpublished


def swap_with_another_table(t: AlteredTable) -> Statements:
    """What copies a table and then gives the copy its name does, as tools for alterations without a lock."""
    if t.key and not t.is_partitioned and not t.is_listed and not t.kids and not t.parent:
        other, old = t.new_name("other"), t.new_name("old")
        fits = all(c.is_ordinary for c in t.columns)
        if fits:
            like = f"LIKE {t.here} INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING STORAGE"
            yield f"CREATE TABLE {t.home}.{other} ({like})"
            key_name = t.new_name("key")
            yield f"ALTER TABLE {t.home}.{other} ADD CONSTRAINT {key_name} PRIMARY KEY ({', '.join(t.key)})"
            yield f"INSERT INTO {t.home}.{other} SELECT * FROM {t.here}"
            t.key_name, t.identity, t.index_key, t.unlogged = key_name, "default", (), False
            t.has_unique_index = False
            yield f"ALTER TABLE {t.here} RENAME TO {old}"
            yield f"ALTER TABLE {t.home}.{other} RENAME TO {t.name}"


def gets_a_parent(t: AlteredTable) -> Statements:
    if not t.parent and not t.is_partitioned:
        t.parent = t.new_name("parent")
        column = t.new_name()
        yield f"CREATE TABLE {t.schema}.{t.parent} ({column} int)"
        yield f"ALTER TABLE {t.here} ADD COLUMN {column} int"
        from tests.definitions.altered_table import Column

        t.columns.append(Column(column, "int", is_fixed=True))
        yield f"ALTER TABLE {t.here} INHERIT {t.schema}.{t.parent}"


def leaves_its_parent(t: AlteredTable) -> Statements:
    if t.parent:
        parent, t.parent = t.parent, ""
        yield f"ALTER TABLE {t.here} NO INHERIT {t.schema}.{parent}"


def gets_a_child(t: AlteredTable) -> Statements:
    if not t.kids and not t.is_partitioned and all(c.is_ordinary for c in t.columns):
        kid = t.new_name("kid")
        t.kids.append(kid)
        yield f"CREATE TABLE {t.schema}.{kid} () INHERITS ({t.here})"


def owner(t: AlteredTable) -> Statements:
    yield f"ALTER TABLE {t.here} OWNER TO pg_database_owner"


def taken_from_the_publication_and_back(t: AlteredTable) -> Statements:
    if t.is_listed and not t.unpublished:
        t.unpublished = True
        yield f"ALTER PUBLICATION {{publication}} DROP TABLE {t.only}"
        yield BETWEEN
        t.unpublished = False
        yield f"ALTER PUBLICATION {{publication}} ADD TABLE {t.only}"


def taken_from_the_publication(t: AlteredTable) -> Statements:
    if t.is_listed and not t.unpublished:
        t.unpublished = True
        yield f"ALTER PUBLICATION {{publication}} DROP TABLE {t.only}"


KINDS: tuple[Kind, ...] = (
    key_made_again,
    row_lost_beside_the_key,
    key_dropped,
    key_added,
    key_on_other_columns,
    identity_full,
    identity_default,
    identity_nothing,
    identity_full_for_a_while,
    identity_by_index,
    unlogged,
    logged,
    unlogged_for_a_while,
    vacuum_full,
    cluster,
    reindex,
    truncate,
    rename_of_table,
    rename_of_table_and_back,
    another_schema,
    another_schema_and_back,
    dropped_and_created,
    swap_with_another_table,
    gets_a_parent,
    leaves_its_parent,
    gets_a_child,
    owner,
    taken_from_the_publication,
    taken_from_the_publication_and_back,
)
