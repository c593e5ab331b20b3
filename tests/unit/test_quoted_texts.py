"""Where the code may repeat what somebody else's exception says: nowhere but in the modules that take values out of it.

Read from the source, so that a new `raise … from failed` is seen before it has shown a value to anybody.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache
from pathlib import Path

import pytest

from tests.unit.test_architecture import REPOSITORY, modules_below

# psycopg's errors come out of sessions without values; these two see to it.
POSTGRES = {"include/tidemark/postgres/postgres_session.py", "include/tidemark/postgres/redaction.py"}
# What an exception may be asked that holds no value, and who may be handed all of it.
FACTS = {
    "errno",
    "strerror",
    "filename",
    "__traceback__",
    "problem",
    "problem_mark",
    "context",
    "context_mark",
    "position",
    "lineno",
    "colno",
}
MAY_SEE = {
    "type",
    "isinstance",
    "as_error",
    "_as_error",
    "_fell_back",
    "fell_back",
    "not_compared",
    "on_failure",
    "is_missing_file",
    "as_disk_full",
    "as_refusal",
    "full",
    "disk_error",
    "is_transient",
    "stack_frames",
    "condition_of",
    "without_values",
    "without_texts",
    "is_contested",
    "_refusal",
    "_words",
    "_response_text",
}
# Read with their own words: psycopg's (without values by then), Airflow's.
HARMLESS = ("psycopg", "Airflow")
# What is said of the pipeline file, whose text holds no secret: module -> what it calls the exceptions.
OF_THE_FILE = {
    "include/tidemark/capture/definitions/table_definition.py": {"wrong"},
    "include/tidemark/config/file_reader.py": {"broken", "invalid"},
    "plugins/tidemark_airflow/dag_factory.py": {"refused"},
}

MODULES = [module for place in ("include/tidemark", "plugins", "spark_apps", "dags") for module in modules_below(place)]


def own_exceptions() -> set[str]:
    """Names of the exception classes that the project defines."""
    foreign = {"Exception", "ValueError"}
    bases = foreign | {"TidemarkError"}
    classes = [node for module in MODULES for node in ast.walk(ast.parse(module.read_text()))]
    while True:
        more = {
            node.name
            for node in classes
            if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id in bases for b in node.bases)
        }
        if more <= bases:
            return bases - foreign
        bases |= more


OWN = own_exceptions()


def caught(handler: ast.ExceptHandler) -> list[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [ast.unparse(kind) for kind in kinds if kind is not None]


def quotes(nodes: list[ast.AST], allowed: Set[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Line and code of each use of a caught exception that could repeat its words."""
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    parents = {child: node for one in handlers for node in ast.walk(one) for child in ast.iter_child_nodes(node)}
    for handler in handlers:
        if handler.name is None or handler.name in allowed:
            continue
        if all(kind in OWN or kind.startswith(HARMLESS) for kind in caught(handler)):
            continue
        for node in ast.walk(handler):
            if isinstance(node, ast.Name) and node.id == handler.name and not is_harmless(node, parents):
                yield node.lineno, ast.unparse(parents[node])


def is_harmless(name: ast.Name, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents[name]
    if isinstance(parent, ast.Attribute):
        return parent.attr in FACTS
    if isinstance(parent, ast.Call) and name in parent.args:
        return ast.unparse(parent.func).rpartition(".")[2] in MAY_SEE
    if isinstance(parent, ast.IfExp):  # `failed if isinstance(failed, TidemarkError) else …`
        return ast.unparse(parent.test) == f"isinstance({name.id}, TidemarkError)"
    return False


def names(module: Path) -> str:
    return module.relative_to(REPOSITORY).as_posix()


@lru_cache(maxsize=1)
def nodes_of(module: Path) -> list[ast.AST]:
    """The module itself, and all within it."""
    return [*ast.walk(ast.parse(module.read_text()))]


# All tests of one module are run before those of the next, so that it is parsed once.
each_module = pytest.mark.parametrize("module", MODULES, ids=names, scope="module")


@each_module
def test_nothing_repeats_what_a_foreign_exception_says(module: Path) -> None:
    assert list(quotes(nodes_of(module), OF_THE_FILE.get(names(module), frozenset()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "try: f()\nexcept ValueError as failed: raise Leaf(detail='x') from failed",
        "try: f()\nexcept ValueError as failed: raise Leaf(detail=f'{failed}') from None",
        "try: f()\nexcept (psycopg.Error, ValueError) as failed: log.warning('%s', failed)",
        "try: f()\nexcept Exception as failed: log.warning('%s', str(failed))",
        "try: f()\nexcept KeyError as failed: found.append(failed.args)",
    ],
)
def test_the_rule_sees_what_it_forbids(code: str) -> None:
    assert len(list(quotes([*ast.walk(ast.parse(code))]))) == 1


@each_module
def test_no_session_is_opened_and_no_error_made_of_a_result_elsewhere(module: Path) -> None:
    """So that psycopg's exceptions hold no value wherever they are caught, chained or left alone."""
    functions = [
        node.func for node in nodes_of(module) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    suspects = [ast.unparse(f) for f in functions if f.attr.endswith(("connect", "error_from_result", "error_message"))]
    forbidden = ("psycopg.connect", "Connection.connect", "error_from_result", "error_message")
    opened = [call for call in suspects if call.endswith(forbidden)]
    assert names(module) in POSTGRES or opened == []


@each_module
def test_no_log_line_has_an_exceptions_own_text(module: Path) -> None:
    nodes = nodes_of(module)
    wrong = [ast.unparse(node) for node in nodes if isinstance(node, ast.keyword) and node.arg == "exc_info"]
    wrong += [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr in ("exception", "format_exc", "print_exc", "format_exception", "print_exception", "stack_info")
        and ast.unparse(node.value) in ("log", "logger", "self.log", "logging", "traceback")
    ]
    assert wrong == []


def test_whatever_airflow_calls_is_guarded() -> None:
    """Operators and sensors; the trigger guards the two functions that it calls on threads."""
    entries = {
        f"{module.stem}.{cls.name}.{function.name}": [ast.unparse(one) for one in function.decorator_list]
        for module in modules_below("plugins")
        for cls in ast.walk(ast.parse(module.read_text()))
        if isinstance(cls, ast.ClassDef)
        for function in cls.body
        if isinstance(function, ast.FunctionDef) and function.name in ("execute", "execute_complete")
    }
    assert len(entries) >= 8
    assert {name for name, decorators in entries.items() if "guarded" not in decorators} == set()
