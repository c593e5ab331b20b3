"""What `pg_catalog` has of types, casts, operators and functions for one row filter -> `Catalogue`.

Whether a conversion happens by itself, and which type several values have in common, is answered by PostgreSQL's own
rules: parse_coerce.c. Immutable is what `provolatile` says, for the functions behind operators and casts too. Source:
PostgreSQL documentation, 10.5 "UNION, CASE, and Related Constructs", 36.7 "Function Volatility Categories", and
the catalogues pg_type, pg_cast, pg_operator, pg_proc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.source.catalog import CapturedTable
from tidemark.source.filter_syntax import Expression, names_in

# What may be cast to, and what an operator or function may take and give. No reg*: they read the catalogue.
PLAIN: Final = frozenset(
    """
    bool int2 int4 int8 float4 float8 numeric money oid text varchar bpchar char name bytea bit varbit uuid
    date time timetz timestamp timestamptz interval json jsonb jsonpath inet cidr macaddr macaddr8 pg_lsn
    tsvector tsquery point line lseg box path polygon circle
    int4range int8range numrange tsrange tstzrange daterange
    int4multirange int8multirange nummultirange tsmultirange tstzmultirange datemultirange
    """.split()  # noqa: SIM905
)

UNKNOWN: Final = 705
BOOL: Final = 16
TEXT: Final = 25
STRING: Final = "S"
_ANY: Final = 2276

_OWN: Final = "'pg_catalog'::regnamespace"
_TYPES: Final = f"""
    WITH RECURSIVE wanted AS (
        SELECT oid FROM pg_type WHERE typnamespace = {_OWN} AND typtype <> 'c' OR oid = ANY (%s::oid[])
        UNION
        SELECT part FROM wanted JOIN pg_type t USING (oid)
        CROSS JOIN LATERAL unnest(ARRAY[t.typbasetype, t.typelem, t.typarray]) AS part WHERE part <> 0
    )
    SELECT t.oid, n.nspname, t.typname, t.typnamespace = {_OWN}, t.typtype::text, t.typcategory::text, t.typispreferred,
           CASE WHEN e.typarray = t.oid THEN t.typelem ELSE 0 END, t.typarray, t.typbasetype,
           coalesce(r.rngsubtype, 0), coalesce(m.rngtypid, 0),
           i.provolatile = 'i' AND i.pronamespace = {_OWN}, o.provolatile = 'i' AND o.pronamespace = {_OWN}
      FROM wanted JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace
      JOIN pg_proc i ON i.oid = t.typinput JOIN pg_proc o ON o.oid = t.typoutput
      LEFT JOIN pg_type e ON e.oid = t.typelem
      LEFT JOIN pg_range r ON r.rngtypid = t.oid LEFT JOIN pg_range m ON m.rngmultitypid = t.oid
"""
_CASTS: Final = f"""
    SELECT c.castsource, c.casttarget, c.castcontext::text, c.castmethod::text,
           c.castmethod = 'b' OR coalesce(p.provolatile = 'i' AND p.pronamespace = {_OWN}, false)
      FROM pg_cast c LEFT JOIN pg_proc p ON p.oid = c.castfunc
     WHERE c.castsource = ANY (%s::oid[]) AND c.casttarget = ANY (%s::oid[])
"""
_OPERATORS: Final = f"""
    SELECT o.oprname, CASE WHEN o.oprkind = 'l' THEN ARRAY[o.oprright] ELSE ARRAY[o.oprleft, o.oprright] END,
           o.oprresult, p.provolatile = 'i' AND p.pronamespace = {_OWN}
      FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
     WHERE o.oprnamespace = {_OWN} AND o.oprname = ANY (%s::name[])
"""
# A call may leave out arguments that have defaults; what takes any number of them is not taken.
_FUNCTIONS: Final = f"""
    SELECT p.proname, ARRAY(SELECT (p.proargtypes::oid[])[n] FROM generate_series(0, p.pronargs - missing - 1) AS n),
           p.prorettype, p.provolatile = 'i', p.proretset
      FROM pg_proc p CROSS JOIN LATERAL generate_series(0, p.pronargdefaults) AS missing
     WHERE p.pronamespace = {_OWN} AND p.prokind = 'f' AND p.provariadic = 0 AND p.proname = ANY (%s::name[])
"""
_COLLATIONS: Final = f"SELECT collname::text FROM pg_collation WHERE collnamespace = {_OWN}"


@dataclass(frozen=True, slots=True)
class PgType:
    """A row of pg_type. `element` is that of a true array, `subtype` that of a range, `range` that of a multirange, 0
    where there is none. `reads` and `writes`: its input and output function are PostgreSQL's own and immutable."""

    oid: int
    schema: str
    name: str
    own: bool
    kind: str
    category: str
    preferred: bool
    element: int
    array: int
    base: int
    subtype: int
    range: int
    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class Routine:
    """A function, or the function behind an operator: what it takes and gives."""

    name: str
    arguments: tuple[int, ...]
    result: int
    immutable: bool
    set_returning: bool = False


@dataclass(frozen=True, slots=True)
class Conversion:
    """A row of pg_cast; `immutable` where it calls nothing or one of PostgreSQL's own immutable functions."""

    context: str
    method: str
    immutable: bool


class Catalogue:
    """The types, casts, operators and functions that one filter may need, read in four statements."""

    def __init__(self, conn: psycopg.Connection[Any], table: CapturedTable, tree: Expression) -> None:
        operators, functions = names_in(tree)
        oids = [column.type_oid for column in table.captured_columns]
        self.types = {row[0]: PgType(*row) for row in conn.execute(_TYPES, (oids,))}
        self.by_name = {type_.name: type_ for type_ in self.types.values() if type_.own}
        self.casts = {
            (source, target): Conversion(*rest)
            for source, target, *rest in conn.execute(_CASTS, (list(self.types), list(self.types)))
        }
        self.operators = _routines(conn.execute(_OPERATORS, (sorted(operators),)))
        self.functions = _routines(conn.execute(_FUNCTIONS, (sorted(functions),)))
        self.collations = {name for (name,) in conn.execute(_COLLATIONS)}

    def base(self, oid: int) -> int:
        while (type_ := self.types.get(oid)) is not None and type_.base:
            oid = type_.base
        return oid

    def category(self, oid: int) -> str:
        type_ = self.types.get(oid)
        return "X" if type_ is None else type_.category

    def preferred(self, oid: int) -> bool:
        type_ = self.types.get(oid)
        return type_ is not None and type_.preferred

    def taken(self, oid: int) -> bool:
        """Whether operators and functions may take and give it."""
        type_ = self.types.get(oid)
        if type_ is None:
            return False
        if type_.element:
            return self.taken(type_.element)
        return type_.kind == "e" or (type_.own and type_.name in PLAIN)

    def called(self, oid: int) -> str:
        type_ = self.types.get(oid)
        if type_ is None:
            return "a type of its own"
        return f"{self.called(type_.element)}[]" if type_.element else type_.name

    def converts(self, source: int, target: int) -> bool:
        """Whether PostgreSQL converts by itself: can_coerce_type() of parse_coerce.c, for types that are no
        polymorphic ones."""
        if source in (target, UNKNOWN) or target == _ANY:
            return True
        source = self.base(source)
        if source == target:
            return True
        cast = self.casts.get((source, target))
        if cast is not None:
            return cast.context == "i"
        elements = self._elements(source, target)
        return elements is not None and self.converts(*elements)

    def conversion(self, source: int, target: int, *, explicit: bool) -> bool:
        """Whether the conversion calls nothing but immutable functions of PostgreSQL's own. `source` is no domain."""
        if source == target:
            return True
        cast = self.casts.get((source, target))
        if cast is not None and cast.method != "i":
            return cast.immutable
        elements = self._elements(source, target)
        if cast is None and elements is not None:
            return self.conversion(self.base(elements[0]), elements[1], explicit=explicit)
        if cast is None and not (explicit and STRING in (self.category(source), self.category(target))):
            return False
        return self.types[source].writes and self.types[target].reads

    def lengths(self, oid: int) -> bool:
        """Whether a value is brought to a modifier's length by an immutable function."""
        type_ = self.types[oid]
        cast = self.casts.get((type_.element or oid,) * 2)
        return cast is not None and cast.immutable

    def common(self, types: list[int]) -> int | None:
        """The type that values of all these get where they stand in one place: select_common_type() of
        parse_coerce.c."""
        typed = [type_ for type_ in types if type_ != UNKNOWN]
        if not typed:
            return TEXT if types else None
        chosen, *others = (self.base(type_) for type_ in typed)
        for other in others:
            if other == chosen:
                continue
            if self.category(other) != self.category(chosen):
                return None
            if not self.preferred(chosen) and self.converts(chosen, other) and not self.converts(other, chosen):
                chosen = other
        return chosen

    def _elements(self, source: int, target: int) -> tuple[int, int] | None:
        left, right = self.types.get(source), self.types.get(target)
        if left is None or right is None or not left.element or not right.element:
            return None
        return left.element, right.element


def _routines(rows: Iterable[Sequence[Any]]) -> dict[str, list[Routine]]:
    routines: dict[str, list[Routine]] = {}
    for name, arguments, *rest in rows:
        routines.setdefault(name, []).append(Routine(name, tuple(arguments), *rest))
    return routines
