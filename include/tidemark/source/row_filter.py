"""A row filter's text and a table's catalogue -> the condition that is run, written anew: `condition`.

    text ──filter_syntax──► tree ──filter_catalogue, filter_overloads──► SQL with nothing left to resolve

Whatever the condition calls is looked up here, by the rules by which PostgreSQL itself would resolve it, and must be
immutable and one of PostgreSQL's own. What is written then names it with its schema and casts every argument to exactly
the type that was chosen, so that the server has no choice left to make: were a rule mistaken here, the condition might
mean another thing or fail, but it could not call what was not looked at. Only columns that are captured in clear can be
named: by a filter on a masked one, rows would be found by the values that the mask hides.

Types are PostgreSQL's plain ones, arrays of them, and a column's own enum; a domain counts as its base type, and
nothing is ever cast to one, since its checks call functions. Immutable is what `provolatile` says, for the functions
behind operators and casts too; a literal's own input function is the exception, since a literal is read once, under
settings that are the same in every session. Source: PostgreSQL documentation, 10.2 "Operators", 10.3 "Functions", 10.5
"UNION, CASE, and Related Constructs", 36.7 "Function Volatility Categories".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.errors import RowFilterInvalid
from tidemark.source import filter_syntax as syntax
from tidemark.source.catalog import CapturedTable
from tidemark.source.filter_catalogue import BOOL, PLAIN, TEXT, UNKNOWN, Catalogue, Routine
from tidemark.source.filter_overloads import Overloads
from tidemark.source.filter_syntax import Expression, FilterRefused, names_a_column

_OPERATOR: Final = re.compile(r"[+\-*/<>=~!@#%^&|`?]+")
_SENTENCES: Final = {
    "22003": "a number that it makes is out of its type's range",
    "22007": "a text is no date or time",
    "22008": "a date or time that it makes is out of its type's range",
    "22012": "it divides by zero",
    "22019": "its escape character is not one character",
    "2201B": "a text is no regular expression",
    "2201E": "it takes the logarithm of a number that has none",
    "2201F": "it raises a number to a power that gives none",
    "2202E": "an array's subscripts do not fit",
    "22023": "an argument is none that its function takes",
    "22025": "a pattern ends in its escape character",
    "22P02": "a text is no value of the type that it is read as",
    "42804": "a value's type does not fit its place",
    "42883": "an operator or function does not exist",
    "42P21": "its collations contradict each other",
    "42P22": "it does not say by which collation it compares",
    "53200": "it needs more memory than the source has",
    "54000": "a value that it makes is too large",
    "54001": "it is nested too deeply",
    "57014": "it took too long, or somebody cancelled it",
}
_OF_CLASS: Final = {
    "22": "it fails on a value of the table",
    "42": "PostgreSQL does not take it",
    "54": "it is too large",
}
# Texts of dates and times that are another value every day.
_MOVING: Final = re.compile(r"now|today|tomorrow|yesterday", re.IGNORECASE)
_OF_TIME: Final = re.compile(r"date|time|ts|tstz")


@dataclass(frozen=True, slots=True)
class _Typed:
    """An expression as it will be run, and its type. `literal` is set while it has none: a quoted text, or NULL."""

    sql: sql.Composable
    type: int
    literal: syntax.Constant | None = None


def condition(conn: psycopg.Connection[Any], table: CapturedTable, text: str) -> sql.Composed:
    """The filter as SQL over the table's columns, in parentheses. Looks into the catalogue. Raises RowFilterInvalid."""
    try:
        tree = syntax.parse(text, table.name)
        return _Writer(Catalogue(conn, table, tree), table).condition(tree)
    except FilterRefused as refused:
        raise RowFilterInvalid(table=table.table, detail=str(refused)) from None


def why_it_failed(error: psycopg.Error) -> str:
    """A sentence for an error that a condition met while it ran. PostgreSQL's own text may quote a row's value."""
    sqlstate = error.sqlstate or "unknown"
    sentence = _SENTENCES.get(sqlstate) or _OF_CLASS.get(sqlstate[:2], "PostgreSQL does not run it")
    return f"{sentence} (SQLSTATE {sqlstate})"


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, catalogue: Catalogue, table: CapturedTable) -> None:
        self._catalogue = catalogue
        self._overloads = Overloads(catalogue)
        self._table = table
        self._kinds: dict[type[Any], Callable[[Any], _Typed]] = {
            syntax.Column: self._column,
            syntax.Constant: self._constant,
            syntax.Cast: self._cast,
            syntax.Operation: self._operation,
            syntax.Membership: self._membership,
            syntax.Quantified: self._quantified,
            syntax.Call: self._call,
            syntax.Junction: self._junction,
            syntax.Test: self._test,
            syntax.Distinct: self._distinct,
            syntax.NullIf: self._null_if,
            syntax.Choice: self._choice,
            syntax.Case: self._case,
            syntax.Array: self._array,
            syntax.Collated: self._collated,
        }

    def condition(self, tree: Expression) -> sql.Composed:
        return sql.SQL("({})").format(self._truth(tree))

    def _write(self, expression: Expression) -> _Typed:
        return self._kinds[type(expression)](expression)

    def _truth(self, expression: Expression) -> sql.Composable:
        typed = self._write(expression)
        if typed.type not in (BOOL, UNKNOWN) and self._catalogue.base(typed.type) != BOOL:
            raise FilterRefused(f"it has a value of type {self._called(typed.type)} where a condition is needed")
        return self._coerced(typed, BOOL)

    # --- values -------------------------------------------------------------------------------------------------------

    def _column(self, node: syntax.Column) -> _Typed:
        rule = self._table.rule
        for column in self._table.captured_columns:
            if column.name == node.name:
                if column.name in rule.mask:
                    raise FilterRefused(f"it names {node.name!r}, which is masked")
                return _Typed(sql.Identifier(node.name), column.type_oid)
        raise FilterRefused(f"it names {node.name!r}, which is no captured column of the table")

    def _constant(self, node: syntax.Constant) -> _Typed:
        if node.type == "unknown":
            return _Typed(sql.NULL, UNKNOWN, node)
        type_ = self._catalogue.by_name[node.type]
        return _Typed(self._literal(node, type_.oid), type_.oid)

    def _cast(self, node: syntax.Cast) -> _Typed:
        target = self._named(node.to)
        argument = self._write(node.argument)
        if argument.literal is not None:
            return _Typed(self._literal(argument.literal, target, node.to.modifiers), target)
        source = self._catalogue.base(argument.type)
        if not self._catalogue.conversion(source, target, explicit=True):
            raise FilterRefused(
                f"it casts {self._called(source)} to {self._called(target)}, which is not immutable or not possible"
            )
        if node.to.modifiers and not self._catalogue.lengths(target):
            raise FilterRefused(f"it casts to {node.to.name} with a modifier, which is not immutable")
        plain = self._as_base(argument)
        return _Typed(self._cast_sql(plain.sql, target, node.to.modifiers), target)

    def _named(self, name: syntax.TypeName) -> int:
        type_ = self._catalogue.by_name.get(name.name) if name.schema in ("", "pg_catalog") else None
        if type_ is None or type_.name not in PLAIN:
            raise FilterRefused(f"it casts to {name.name}, which is none of PostgreSQL's plain types")
        return type_.array if name.array else type_.oid

    def _literal(self, constant: syntax.Constant, target: int, modifiers: tuple[int, ...] = ()) -> sql.Composed:
        """The text under a type, whose input function reads it once, before any row."""
        if not self._catalogue.taken(target):
            raise FilterRefused(f"it compares a literal with {self._called(target)}, which is no plain type")
        called = self._called(target)
        if constant.text is not None and _OF_TIME.match(called) and _MOVING.search(constant.text):
            raise FilterRefused("it holds a date or time that is another one every day: write the value")
        text = sql.NULL if constant.text is None else sql.Literal(constant.text)
        return self._cast_sql(text, target, modifiers)

    def _cast_sql(self, value: sql.Composable, target: int, modifiers: tuple[int, ...] = ()) -> sql.Composed:
        type_ = self._catalogue.types[target]
        element = self._catalogue.types[type_.element] if type_.element else type_
        written: sql.Composable = sql.Identifier(element.schema, element.name)
        if modifiers:
            written = sql.SQL("{}({})").format(written, sql.SQL(", ").join(sql.Literal(number) for number in modifiers))
        if type_.element:
            written = sql.SQL("{}[]").format(written)
        return sql.SQL("CAST({} AS {})").format(value, written)

    def _as_base(self, typed: _Typed) -> _Typed:
        """A domain's value as one of its base type: nothing is called for that."""
        base = self._catalogue.base(typed.type)
        if base == typed.type:
            return typed
        if not self._catalogue.taken(base):
            return _Typed(typed.sql, base)
        return _Typed(self._cast_sql(typed.sql, base), base)

    def _coerced(self, typed: _Typed, target: int) -> sql.Composable:
        """As PostgreSQL would convert it by itself, but said. Raises FilterRefused if that is not immutable."""
        if typed.literal is not None:
            return self._literal(typed.literal, target)
        plain = self._as_base(typed)
        if plain.type == target:
            return plain.sql
        if not self._catalogue.converts(plain.type, target) or not self._catalogue.conversion(
            plain.type, target, explicit=False
        ):
            raise FilterRefused(
                f"it needs {self._called(plain.type)} as {self._called(target)}, a conversion that is not immutable or "
                "not possible"
            )
        return self._cast_sql(plain.sql, target)

    def _called(self, oid: int) -> str:
        return self._catalogue.called(oid)

    # --- operators and functions --------------------------------------------------------------------------------------

    def _operation(self, node: syntax.Operation) -> _Typed:
        right = self._write(node.right)
        if node.left is None:
            chosen = self._operator(node.operator, [right])
            text = sql.SQL("({} {})").format(self._operator_sql(chosen), self._coerced(right, chosen.arguments[0]))
            return _Typed(text, chosen.result)
        return self._compared(node.operator, self._write(node.left), right)

    def _compared(self, operator: str, left: _Typed, right: _Typed) -> _Typed:
        chosen = self._operator(operator, [left, right])
        text = sql.SQL("({} {} {})").format(
            self._coerced(left, chosen.arguments[0]),
            self._operator_sql(chosen),
            self._coerced(right, chosen.arguments[1]),
        )
        return _Typed(text, chosen.result)

    def _membership(self, node: syntax.Membership) -> _Typed:
        """What names no column is one array of a common type, which PostgreSQL may look up by hash; the rest stands one
        by one: transformAExprIn() of parse_expr.c."""
        left = self._write(node.left)
        items = [(self._write(item), names_a_column(item)) for item in node.items]
        constants = [item for item, named in items if not named]
        type_ = self._catalogue.common([left.type, *(item.type for item in constants)]) if len(constants) > 1 else None
        word, quantifier = ("OR", "ANY") if node.operator == "=" else ("AND", "ALL")
        comparisons: list[sql.Composable] = []
        if type_ is not None and self._catalogue.taken(type_):
            chosen = self._operator(node.operator, [left, _Typed(sql.NULL, type_)])
            texts = [
                self._coerced(_Typed(self._coerced(item, type_), type_), chosen.arguments[1]) for item in constants
            ]
            comparisons.append(
                sql.SQL("({} {} {} (ARRAY[{}]))").format(
                    self._coerced(left, chosen.arguments[0]),
                    self._operator_sql(chosen),
                    sql.SQL(quantifier),
                    sql.SQL(", ").join(texts),
                )
            )
            items = [(item, named) for item, named in items if named]
        comparisons += [self._compared(node.operator, left, item).sql for item, _ in items]
        return _Typed(_joined(word, comparisons), BOOL)

    def _quantified(self, node: syntax.Quantified) -> _Typed:
        left, array = self._write(node.left), self._write(node.array)
        of_array = self._catalogue.types.get(self._catalogue.base(array.type))
        if array.literal is None and (of_array is None or not of_array.element):
            raise FilterRefused("it has ANY or ALL over something that is no array")
        element = _Typed(sql.NULL, UNKNOWN, array.literal)
        if array.literal is None and of_array is not None:
            element = _Typed(sql.NULL, of_array.element)
        chosen = self._operator(node.operator, [left, element])
        if chosen.result != BOOL:
            raise FilterRefused("it has ANY or ALL with an operator that is no comparison")
        text = sql.SQL("({} {} {} ({}))").format(
            self._coerced(left, chosen.arguments[0]),
            self._operator_sql(chosen),
            sql.SQL("ALL" if node.every else "ANY"),
            self._coerced(array, self._catalogue.types[chosen.arguments[1]].array),
        )
        return _Typed(text, BOOL)

    def _operator(self, name: str, arguments: list[_Typed]) -> Routine:
        """The operator that PostgreSQL would take, its polymorphic types resolved."""
        candidates = [r for r in self._catalogue.operators.get(name, ()) if len(r.arguments) == len(arguments)]
        types = [argument.type for argument in arguments]
        called = " and ".join(self._called(type_) for type_ in types)
        return self._fit(self._overloads.chosen(candidates, types, assume_same=True), f"operator {name} for {called}")

    def _operator_sql(self, routine: Routine) -> sql.SQL:
        if not _OPERATOR.fullmatch(routine.name):
            raise FilterRefused("it uses an operator whose name is none")
        return sql.SQL(f"OPERATOR(pg_catalog.{routine.name})")

    def _call(self, node: syntax.Call) -> _Typed:
        arguments = [self._write(argument) for argument in node.arguments]
        types = [argument.type for argument in arguments]
        candidates = [r for r in self._catalogue.functions.get(node.name, ()) if len(r.arguments) == len(types)]
        if len(types) == 1 and types[0] == UNKNOWN and node.name in PLAIN and arguments[0].literal is not None:
            # date('2026-01-02') is how some write a cast.
            return self._cast(syntax.Cast(node.arguments[0], syntax.TypeName("", node.name)))
        called = ", ".join(self._called(type_) for type_ in types)
        chosen = self._fit(self._overloads.chosen(candidates, types), f"function {node.name}({called})")
        written = sql.SQL(", ").join(
            self._coerced(argument, type_) for argument, type_ in zip(arguments, chosen.arguments, strict=True)
        )
        return _Typed(sql.SQL("{}({})").format(sql.Identifier("pg_catalog", node.name), written), chosen.result)

    def _fit(self, chosen: Routine | None, routine: str) -> Routine:
        if chosen is None:
            raise FilterRefused(
                f"there is no {routine} in pg_catalog, or more than one that would do: cast to say which"
            )
        if not chosen.immutable or chosen.set_returning:
            raise FilterRefused(f"it uses the {routine}, which is not immutable")
        for type_ in (*chosen.arguments, chosen.result):
            if not self._catalogue.taken(type_):
                raise FilterRefused(f"it uses the {routine}, which takes or gives {self._called(type_)}: no plain type")
        return chosen

    # --- words --------------------------------------------------------------------------------------------------------

    def _junction(self, node: syntax.Junction) -> _Typed:
        operands = [self._truth(operand) for operand in node.operands]
        if node.word == "NOT":
            return _Typed(sql.SQL("(NOT {})").format(operands[0]), BOOL)
        return _Typed(_joined(node.word, operands), BOOL)

    def _test(self, node: syntax.Test) -> _Typed:
        if "NULL" in node.word:
            typed = self._write(node.argument)
            value = typed.sql if typed.literal is None else self._literal(typed.literal, TEXT)
        else:
            value = self._truth(node.argument)
        return _Typed(sql.SQL("({} IS {})").format(value, sql.SQL(node.word)), BOOL)

    def _distinct(self, node: syntax.Distinct) -> _Typed:
        left, right = self._same(node.left, node.right)
        word = sql.SQL("IS NOT DISTINCT FROM" if node.negated else "IS DISTINCT FROM")
        return _Typed(sql.SQL("({} {} {})").format(left.sql, word, right.sql), BOOL)

    def _null_if(self, node: syntax.NullIf) -> _Typed:
        left, right = self._same(node.left, node.right)
        return _Typed(sql.SQL("NULLIF({}, {})").format(left.sql, right.sql), left.type)

    def _same(self, left: Expression, right: Expression) -> tuple[_Typed, _Typed]:
        """Both sides under exactly the types of "=", which PostgreSQL looks up by itself, in pg_catalog."""
        typed = [self._write(left), self._write(right)]
        chosen = self._operator("=", typed)
        first, second = (_Typed(self._coerced(t, to), to) for t, to in zip(typed, chosen.arguments, strict=True))
        return first, second

    def _choice(self, node: syntax.Choice) -> _Typed:
        type_, operands = self._of_one_type([self._write(operand) for operand in node.operands])
        return _Typed(sql.SQL("{}({})").format(sql.SQL(node.word), sql.SQL(", ").join(operands)), type_)

    def _case(self, node: syntax.Case) -> _Typed:
        results = [self._write(result) for _, result in node.whens]
        if node.otherwise is not None:
            results.append(self._write(node.otherwise))
        type_, written = self._of_one_type(results)
        whens = [
            sql.SQL("WHEN {} THEN {}").format(self._truth(condition), result)
            for (condition, _), result in zip(node.whens, written, strict=False)
        ]
        if node.otherwise is not None:
            whens.append(sql.SQL("ELSE {}").format(written[-1]))
        return _Typed(sql.SQL("(CASE {} END)").format(sql.SQL(" ").join(whens)), type_)

    def _array(self, node: syntax.Array) -> _Typed:
        type_, items = self._of_one_type([self._write(item) for item in node.items])
        array = self._catalogue.types[type_].array
        if array not in self._catalogue.types or self._catalogue.types[type_].element:
            raise FilterRefused("it holds an array of arrays")
        return _Typed(self._cast_sql(sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(items)), array), array)

    def _of_one_type(self, operands: list[_Typed]) -> tuple[int, list[sql.Composable]]:
        type_ = self._catalogue.common([operand.type for operand in operands])
        if type_ is None or not self._catalogue.taken(type_):
            raise FilterRefused("it has values of types that do not go together, or of no plain type, in one place")
        return type_, [self._coerced(operand, type_) for operand in operands]

    def _collated(self, node: syntax.Collated) -> _Typed:
        if node.collation not in self._catalogue.collations:
            raise FilterRefused(f"it uses the collation {node.collation!r}, which pg_catalog has not")
        typed = self._write(node.argument)
        if typed.literal is not None:
            typed = _Typed(self._literal(typed.literal, TEXT), TEXT)
        typed = self._as_base(typed)
        return _Typed(
            sql.SQL("({} COLLATE {})").format(typed.sql, sql.Identifier("pg_catalog", node.collation)), typed.type
        )


def _joined(word: str, operands: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(f" {word} ").join(operands))
