"""The text of a row filter -> a tree of what a condition over one row needs, and of nothing else.

PostgreSQL's own grammar (libpg_query, by way of pgparse) reads the text; what it gives is walked here, and every kind
of node that is not named below is refused, as is every field of a known one that is not looked at. No part of the text
goes on: `row_filter` writes the condition anew from this tree, so that a comment, a second statement or a trick of
quoting has nowhere to go, and a server of another version than the grammar's reads no more than what was allowed.

    column · literal · CAST, :: · operator, LIKE, IN, BETWEEN, ANY, ALL, IS DISTINCT FROM · function · AND, OR, NOT
    · IS NULL, IS TRUE · CASE, COALESCE, NULLIF, GREATEST, LEAST · ARRAY[…] · COLLATE

A refusal quotes names of the filter, never a literal. Source: PostgreSQL documentation, 4.2 "Value Expressions".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal

from tidemark.names import TableName

# The form has the same bound. More does not occur, and what is nested deeper than a person can read is refused.
MAX_CHARACTERS: Final = 10_000
MAX_DEPTH: Final = 60
MAX_NODES: Final = 20_000


class FilterRefused(Exception):
    """A row filter that is not taken, with the reason as a sentence. Internal: it becomes RowFilterInvalid."""


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as it was written; `schema` is "" if none was."""

    schema: str
    name: str
    modifiers: tuple[int, ...] = ()
    array: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: `type` is that of its spelling, "unknown" for one in quotes; `text` is None for NULL."""

    text: str | None
    type: Literal["unknown", "int4", "int8", "numeric", "bool", "bit"] = "unknown"


@dataclass(frozen=True, slots=True)
class Cast:
    argument: Expression
    to: TypeName


@dataclass(frozen=True, slots=True)
class Operation:
    """`left` is None for a prefix operator."""

    operator: str
    left: Expression | None
    right: Expression


@dataclass(frozen=True, slots=True)
class Membership:
    """`left IN (items)`: "=" with one of them; NOT IN: "<>" with each."""

    operator: str
    left: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    """`left operator ANY (array)`, or ALL."""

    operator: str
    left: Expression
    array: Expression
    every: bool


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Junction:
    """AND, OR; NOT with one operand."""

    word: Literal["AND", "OR", "NOT"]
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Test:
    """`argument IS NULL`, `IS NOT TRUE` and their like; `word` is what follows."""

    argument: Expression
    word: str


@dataclass(frozen=True, slots=True)
class Distinct:
    """`left IS DISTINCT FROM right`, by the operator "="."""

    left: Expression
    right: Expression
    negated: bool


@dataclass(frozen=True, slots=True)
class NullIf:
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Choice:
    """COALESCE, GREATEST, LEAST."""

    word: Literal["COALESCE", "GREATEST", "LEAST"]
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """`whens` are pairs of condition and result; a CASE over a value was written out as "=" already."""

    whens: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


@dataclass(frozen=True, slots=True)
class Array:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Collated:
    argument: Expression
    collation: str


Expression = (
    Column
    | Constant
    | Cast
    | Operation
    | Membership
    | Quantified
    | Call
    | Junction
    | Test
    | Distinct
    | NullIf
    | Choice
    | Case
    | Array
    | Collated
)

_Node = dict[str, Any]

# A clause that stands behind a condition makes it more than one.
_OF_A_CONDITION: Final = {"targetList", "whereClause", "limitOption", "op"}

_NULL_TESTS: Final = {"IS_NULL": "NULL", "IS_NOT_NULL": "NOT NULL"}
_BOOLEAN_TESTS: Final = {
    "IS_TRUE": "TRUE",
    "IS_NOT_TRUE": "NOT TRUE",
    "IS_FALSE": "FALSE",
    "IS_NOT_FALSE": "NOT FALSE",
    "IS_UNKNOWN": "UNKNOWN",
    "IS_NOT_UNKNOWN": "NOT UNKNOWN",
}

# Why not, for what people do write.
_REASONS: Final = {
    "SubLink": "it holds a subquery",
    "ParamRef": "it holds a parameter ($1)",
    "SQLValueFunction": "it asks for the current time or user, which is another one for every chunk: write the value",
    "RowExpr": "it holds a ROW of several values: compare them one by one",
    "A_Indirection": "it holds a subscript, or a field of a composite value",
    "A_Star": "it holds a *",
    "SetToDefault": "it holds DEFAULT",
    "XmlExpr": "it holds an XML expression",
    "XmlSerialize": "it holds an XML expression",
}


def parse(text: str, table: TableName) -> Expression:
    """The condition; columns may be written with the table's name before them. Raises FilterRefused."""
    from pgparse import PGQueryError
    from pgparse import parse as statements_of

    if len(text) > MAX_CHARACTERS:
        raise FilterRefused(f"it has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    if "\0" in text:
        raise FilterRefused("it holds a NUL character")
    try:
        statements = statements_of(f"SELECT 1 WHERE\n{text}\n")
    except PGQueryError as wrong:
        # The parser's sentence quotes the text, where a literal may stand.
        raise FilterRefused(f"it is no SQL condition{_place(wrong.position, text)}") from None
    except RecursionError:
        raise FilterRefused("it is nested too deeply") from None
    except ValueError:
        raise FilterRefused("it holds characters that UTF-8 has not") from None
    if len(statements) != 1 or set(statements[0]) - {"stmt", "stmt_len", "stmt_location"}:
        raise FilterRefused("it holds more than one statement")
    select = statements[0]["stmt"].get("SelectStmt")
    if select is None or "whereClause" not in select or set(select) - _OF_A_CONDITION:
        raise FilterRefused("it is more than a condition")
    if (
        select["op"] != "SETOP_NONE"
        or select["limitOption"] != "LIMIT_OPTION_DEFAULT"
        or len(select["targetList"]) != 1
    ):
        raise FilterRefused("it is more than a condition")
    return _Walk(table).walk(select["whereClause"])


def names_in(tree: Expression) -> tuple[set[str], set[str]]:
    """The operators and functions that the tree names; "=" for what is compared without naming it."""
    operators, functions = {"="}, set()
    for node in _nodes(tree):
        if isinstance(node, Operation | Membership | Quantified):
            operators.add(node.operator)
        if isinstance(node, Call):
            functions.add(node.name)
    return operators, functions


def names_a_column(tree: Expression) -> bool:
    return any(isinstance(node, Column) for node in _nodes(tree))


def _nodes(tree: Expression) -> Iterator[Any]:
    todo: list[Any] = [tree]
    count = 0
    while todo:
        node = todo.pop()
        if isinstance(node, tuple):
            todo += node
        elif is_dataclass(node):
            # BETWEEN and CASE hold their first operand more than once, IN writes it for each item; all may be nested.
            count += 1
            if count > MAX_NODES:
                raise FilterRefused("it is too long when it is written out")
            yield node
            if isinstance(node, Membership):
                todo += [node.left] * (len(node.items) - 1)
            todo += [getattr(node, member.name) for member in fields(node)]


def _place(position: object, text: str) -> str:
    """Where the parser stopped, as line and column of the filter."""
    if not isinstance(position, int):
        return ""
    offset = position - len("SELECT 1 WHERE\n") - 1
    if not 0 <= offset < len(text):
        return ": its end is missing" if offset >= len(text) else ""
    before = text[:offset]
    return f": see line {before.count(chr(10)) + 1}, character {offset - (before.rfind(chr(10)) + 1) + 1}"


class _Walk:
    def __init__(self, table: TableName) -> None:
        self._table = table
        self._depth = 0
        self._kinds: dict[str, Callable[[_Node], Expression]] = {
            "ColumnRef": self._column,
            "A_Const": self._constant,
            "TypeCast": self._cast,
            "A_Expr": self._operation,
            "BoolExpr": self._junction,
            "NullTest": self._null_test,
            "BooleanTest": self._boolean_test,
            "FuncCall": self._call,
            "CaseExpr": self._case,
            "CoalesceExpr": self._coalesce,
            "MinMaxExpr": self._min_max,
            "A_ArrayExpr": self._array,
            "CollateClause": self._collated,
        }

    def walk(self, node: _Node) -> Expression:
        (kind, inner) = _only(node)
        walk = self._kinds.get(kind)
        if walk is None:
            raise FilterRefused(_REASONS.get(kind, f"it holds what no condition over one row needs ({kind})"))
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterRefused("it is nested too deeply")
        expression = walk(inner)
        self._depth -= 1
        return expression

    def _all(self, nodes: list[_Node]) -> tuple[Expression, ...]:
        return tuple(self.walk(node) for node in nodes)

    def _column(self, node: _Node) -> Expression:
        _expect(node, "fields")
        names = []
        for field in node["fields"]:
            kind, inner = _only(field)
            if kind != "String":
                raise FilterRefused(_REASONS["A_Star"])
            names.append(inner.get("sval", ""))
        qualifiers = [[], [self._table.name], [self._table.schema, self._table.name]]
        if names[:-1] not in qualifiers:
            raise FilterRefused(f"it names {'.'.join(names)!r}, which is no column of the table")
        return Column(names[-1])

    def _constant(self, node: _Node) -> Expression:
        _expect(node, "ival", "fval", "sval", "bsval", "boolval", "isnull")
        if node.get("isnull"):
            return Constant(None)
        if "ival" in node:
            return Constant(str(node["ival"].get("ival", 0)), "int4")
        if "boolval" in node:
            return Constant("true" if node["boolval"].get("boolval") else "false", "bool")
        if "sval" in node:
            return Constant(node["sval"].get("sval", ""))
        if "fval" in node:
            text = node["fval"]["fval"]
            whole = re.fullmatch(r"[+-]?[0-9]+", text) is not None and -(2**63) <= int(text) < 2**63
            return Constant(text, "int8" if whole else "numeric")
        return Constant(node["bsval"]["bsval"], "bit")

    def _cast(self, node: _Node) -> Expression:
        _expect(node, "arg", "typeName")
        return Cast(self.walk(node["arg"]), _type_name(node["typeName"]))

    def _operation(self, node: _Node) -> Expression:
        _expect(node, "kind", "name", "lexpr", "rexpr")
        kind = node["kind"]
        operator = _pg_catalog_name(node["name"], "operator")
        if kind in ("AEXPR_OP", "AEXPR_LIKE", "AEXPR_ILIKE", "AEXPR_SIMILAR"):
            left = self.walk(node["lexpr"]) if "lexpr" in node else None
            return Operation(operator, left, self.walk(node["rexpr"]))
        left = self.walk(node["lexpr"])
        if kind in ("AEXPR_OP_ANY", "AEXPR_OP_ALL"):
            return Quantified(operator, left, self.walk(node["rexpr"]), kind == "AEXPR_OP_ALL")
        if kind in ("AEXPR_DISTINCT", "AEXPR_NOT_DISTINCT"):
            right = self.walk(node["rexpr"])
            negated = kind == "AEXPR_NOT_DISTINCT"
            if right == Constant(None):
                return Test(left, "NULL" if negated else "NOT NULL")
            return Distinct(left, right, negated)
        if kind == "AEXPR_NULLIF":
            return NullIf(left, self.walk(node["rexpr"]))
        items = self._all(_listed(node["rexpr"]))
        if kind == "AEXPR_IN":
            return Membership(operator, left, items)
        if kind in ("AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN", "AEXPR_BETWEEN_SYM", "AEXPR_NOT_BETWEEN_SYM"):
            low, high = items
            between = _without if "_NOT_" in kind else _within
            if kind.endswith("_SYM"):
                both = (between(left, low, high), between(left, high, low))
                return Junction("AND" if "_NOT_" in kind else "OR", both)
            return between(left, low, high)
        raise FilterRefused(f"it holds what no condition over one row needs ({kind})")

    def _junction(self, node: _Node) -> Expression:
        _expect(node, "boolop", "args")
        words: dict[str, Literal["AND", "OR", "NOT"]] = {"AND_EXPR": "AND", "OR_EXPR": "OR", "NOT_EXPR": "NOT"}
        return Junction(words[node["boolop"]], self._all(node["args"]))

    def _null_test(self, node: _Node) -> Expression:
        _expect(node, "arg", "nulltesttype")
        return Test(self.walk(node["arg"]), _NULL_TESTS[node["nulltesttype"]])

    def _boolean_test(self, node: _Node) -> Expression:
        _expect(node, "arg", "booltesttype")
        return Test(self.walk(node["arg"]), _BOOLEAN_TESTS[node["booltesttype"]])

    def _call(self, node: _Node) -> Expression:
        name = _pg_catalog_name(node["funcname"], "function")
        if set(node) - {"funcname", "args", "funcformat", "location"}:
            # agg_order, agg_filter, over, agg_star, agg_distinct, func_variadic, agg_within_group
            raise FilterRefused(f"it calls {name} as an aggregate, a window function or with VARIADIC")
        return Call(name, self._all(node.get("args", [])))

    def _case(self, node: _Node) -> Expression:
        _expect(node, "arg", "args", "defresult")
        of = self.walk(node["arg"]) if "arg" in node else None
        whens = []
        for when in node["args"]:
            inner = when["CaseWhen"]
            _expect(inner, "expr", "result")
            condition = self.walk(inner["expr"])
            whens.append((condition if of is None else Operation("=", of, condition), self.walk(inner["result"])))
        return Case(tuple(whens), self.walk(node["defresult"]) if "defresult" in node else None)

    def _coalesce(self, node: _Node) -> Expression:
        _expect(node, "args")
        return Choice("COALESCE", self._all(node["args"]))

    def _min_max(self, node: _Node) -> Expression:
        _expect(node, "op", "args")
        return Choice("GREATEST" if node["op"] == "IS_GREATEST" else "LEAST", self._all(node["args"]))

    def _array(self, node: _Node) -> Expression:
        _expect(node, "elements")
        return Array(self._all(node.get("elements", [])))

    def _collated(self, node: _Node) -> Expression:
        _expect(node, "arg", "collname")
        return Collated(self.walk(node["arg"]), _pg_catalog_name(node["collname"], "collation"))


def _within(value: Expression, low: Expression, high: Expression) -> Junction:
    return Junction("AND", (Operation(">=", value, low), Operation("<=", value, high)))


def _without(value: Expression, low: Expression, high: Expression) -> Junction:
    return Junction("OR", (Operation("<", value, low), Operation(">", value, high)))


def _only(node: _Node) -> tuple[str, _Node]:
    ((kind, inner),) = node.items()
    return kind, inner


def _expect(node: _Node, *names: str) -> None:
    """A field that nobody looks at would be lost on the way."""
    unread = set(node) - {*names, "location"}
    if unread:
        raise FilterRefused(f"it holds what no condition over one row needs ({', '.join(sorted(unread))})")


def _listed(node: _Node) -> list[_Node]:
    kind, inner = _only(node)
    if kind != "List":
        raise FilterRefused(_REASONS.get(kind, f"it holds what no condition over one row needs ({kind})"))
    items: list[_Node] = inner["items"]
    return items


def _names(nodes: list[_Node]) -> list[str]:
    return [str(_only(node)[1].get("sval", "")) for node in nodes]


def _pg_catalog_name(nodes: list[_Node], kind: str) -> str:
    names = _names(nodes)
    if len(names) > 1 and names[:-1] != ["pg_catalog"]:
        raise FilterRefused(f"it uses the {kind} {'.'.join(names)}, which is not one of PostgreSQL's own (pg_catalog)")
    return names[-1]


def _type_name(node: _Node) -> TypeName:
    _expect(node, "names", "typmods", "typemod", "arrayBounds")
    names = _names(node["names"])
    modifiers = []
    for modifier in node.get("typmods", []):
        kind, inner = _only(modifier)
        if kind != "A_Const" or "ival" not in inner:
            raise FilterRefused(f"it casts to {'.'.join(names)} with a modifier that is no number")
        modifiers.append(int(inner["ival"].get("ival", 0)))
    bounds = node.get("arrayBounds", [])
    if len(bounds) > 1 or len(names) > 2 or node.get("typemod", -1) != -1:
        raise FilterRefused(f"it casts to {'.'.join(names)}, written in a way that is not taken")
    return TypeName("" if len(names) == 1 else names[0], names[-1], tuple(modifiers), bool(bounds))
