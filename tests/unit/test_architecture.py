"""Who may import whom, read from the source: dags -> plugins -> include/tidemark <- spark_apps."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = REPOSITORY / "include" / "tidemark"
APPLICATIONS = sorted((REPOSITORY / "spark_apps").glob("*.py"))

INPUT_AND_OUTPUT = {"fsspec", "os", "socket", "subprocess", "pathlib"}

# Folder or module -> what nothing in it may import, at module level or inside a function.
FORBIDDEN = {
    "dags": {"pyspark", "psycopg", "delta", "sandbox", "tests"},
    "plugins": {
        "pyspark",
        "delta",
        "sandbox",
        "tests",
        "tidemark.target.delta.data_files",
        "tidemark.target.delta.delta_tables",
        "tidemark.target.delta.session",
        "tidemark.target.table_compaction",
    },
    "spark_apps": {
        *("airflow", "tidemark_airflow", "psycopg"),
        *("tidemark.source", "tidemark.ledger", "tidemark.capture", "tidemark.backfill", "tidemark.config"),
    },
    "include/tidemark": {"airflow", "tidemark_airflow", "sandbox", "tests"},
    "include/tidemark/source": {"pyspark", "delta", "tidemark.target", "tidemark.ledger"},
    "include/tidemark/ledger": {
        *("pyspark", "delta", "tidemark.source", "tidemark.staging", "tidemark.target"),
        *("tidemark.capture", "tidemark.backfill"),
    },
    "include/tidemark/staging": {
        "psycopg",
        "pyspark",
        "delta",
        "tidemark.source",
        "tidemark.ledger",
        "tidemark.target",
    },
    "include/tidemark/target": {
        *("psycopg", "tidemark.source", "tidemark.ledger", "tidemark.capture", "tidemark.backfill", "tidemark.config"),
    },
    # Who reads the lake needs none of what writes it.
    "include/tidemark/lake": {
        *("psycopg", "delta", "tidemark.source", "tidemark.ledger", "tidemark.capture", "tidemark.backfill"),
        *("tidemark.maintenance", "tidemark.run", "tidemark.config"),
    },
    # No I/O in what is pure.
    "include/tidemark/pgoutput": {"psycopg", "pyspark", *INPUT_AND_OUTPUT, "logging", "tidemark.staging"},
    "include/tidemark/schema": {"psycopg", "pyspark", *INPUT_AND_OUTPUT, "logging"},
    "include/tidemark/formats": {"psycopg", "pyspark", *INPUT_AND_OUTPUT, "logging"},
    "include/tidemark/target/spark/fold.py": {"psycopg", "delta", *INPUT_AND_OUTPUT},
    "include/tidemark/target/spark/visibility.py": {"psycopg", "delta", *INPUT_AND_OUTPUT},
    "include/tidemark/backfill/chunk_size.py": {"psycopg", "pyspark", *INPUT_AND_OUTPUT},
    "include/tidemark/lake/as_of_query.py": {"pyspark", "deltalake", *INPUT_AND_OUTPUT},
    # A backfill is another user of capture's stages; no stage knows of it.
    "include/tidemark/capture": {"pyspark", "delta", "tidemark.target", "tidemark.backfill", "tidemark.maintenance"},
    "include/tidemark/backfill": {"pyspark", "delta", "tidemark.target"},
    # Maintenance looks at the slot as the capture does, and nothing there knows of it.
    "include/tidemark/maintenance": {"pyspark", "delta", "tidemark.target", "tidemark.backfill"},
}

# Folder -> the only modules of the library that it may import, itself included.
ALLOWED = {
    "include/tidemark/formats": {
        "tidemark.errors",
        "tidemark.formats",
        "tidemark.lsn",
        "tidemark.names",
        "tidemark.schema",
        "tidemark.strict_json",
    },
    "include/tidemark/schema": {"tidemark.schema", "tidemark.names", "tidemark.strict_json", "tidemark.wording"},
    "include/tidemark/strict_json.py": {"tidemark.lsn"},
}

# What an Airflow process pays for at every parse: only inside functions, or for types.
AT_PARSE = {"psycopg", "pyarrow", "numpy", "pandas", "pyspark", "fsspec"}


def modules_below(place: str) -> list[Path]:
    path = REPOSITORY / place
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that the code names in an import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, forbidden: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in forbidden)


@pytest.mark.parametrize("place", FORBIDDEN)
def test_nobody_imports_what_lies_behind_a_border(place: str) -> None:
    modules = modules_below(place)
    assert modules, f"{place} is empty: the rule says nothing"
    wrong = [
        f"{module.relative_to(REPOSITORY)} imports {name}"
        for module in modules
        for name in imports(ast.parse(module.read_text()))
        if within(name, FORBIDDEN[place])
    ]
    assert wrong == []


@pytest.mark.parametrize("place", ALLOWED)
def test_a_pure_room_imports_of_the_library_only_what_is_named(place: str) -> None:
    modules = modules_below(place)
    assert modules, f"{place} is empty: the rule says nothing"
    wrong = [
        f"{module.relative_to(REPOSITORY)} imports {name}"
        for module in modules
        for name in imports(ast.parse(module.read_text()))
        if within(name, {"tidemark"}) and not within(name, ALLOWED[place])
    ]
    assert wrong == []


def test_sql_on_the_ledgers_tables_stands_in_the_ledger_alone() -> None:
    statement = re.compile(r"\b(FROM|JOIN|INTO|UPDATE|TABLE|TRUNCATE)\s+(ONLY\s+)?tidemark\.\w", re.IGNORECASE)
    speakers = {
        module.relative_to(REPOSITORY).as_posix()
        for place in ("include", "plugins", "dags", "spark_apps", "benchmarks")
        for module in modules_below(place)
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and statement.search(node.value)
    }
    outside = {name for name in speakers if not name.startswith("include/tidemark/ledger/")}
    assert len(speakers) > 5, "the rule finds no SQL"
    assert outside == set()


def functions_below(place: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Every function as `file:name`, with its parameters and what they are annotated as; `self` is none."""
    for module in modules_below(place):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield (
                    f"{module.relative_to(REPOSITORY)}:{node.name}",
                    {p.arg: ast.unparse(p.annotation) if p.annotation else "" for p in arguments if p.arg != "self"},
                )


# Function -> why it may take more than six parameters.
MANY_PARAMETERS = {
    "include/tidemark/source/wal/replication.py:__init__": "what START_REPLICATION takes, and its reader's bounds",
    "include/tidemark/target/delta/delta_tables.py:merge": "the clauses of MERGE, each by its name",
}


@pytest.mark.parametrize("place", ["capture", "backfill", "ledger", "maintenance", "source", "target", "plugins"])
def test_no_function_takes_more_than_six_parameters(place: str) -> None:
    """What a task works with is one record (`tidemark.run`); what belongs together besides is one too."""
    functions = list(functions_below(place if place == "plugins" else f"include/tidemark/{place}"))
    assert len(functions) > 15, "the rule finds no functions"
    many = {name: len(parameters) for name, parameters in functions if len(parameters) > 6}
    assert {name: count for name, count in many.items() if name not in MANY_PARAMETERS} == {}
    assert {name for name in MANY_PARAMETERS if name.startswith(f"include/tidemark/{place}/")} <= many.keys()


def test_a_pipeline_and_its_ledger_travel_as_one() -> None:
    takers, split, bare = [], [], []
    for place in ("include/tidemark", "plugins"):
        for name, parameters in functions_below(place):
            if "Ledger" in parameters.values():
                takers.append(name)
            if "pipeline" in parameters and any(
                kind == "Ledger" or "Connection" in kind for kind in parameters.values()
            ):
                split.append(name)
            in_a_room = name.startswith("include/tidemark/ledger/") and "/migrations/" not in name
            if in_a_room and any("Connection" in kind for kind in parameters.values()):
                bare.append(name)
    assert len(takers) > 100, "the rule finds no functions of the ledger"
    assert split == []
    assert bare == ["include/tidemark/ledger/connection.py:speak_lsn"]


def test_only_one_module_calls_delta() -> None:
    callers = {
        module.relative_to(LIBRARY).as_posix()
        for module in LIBRARY.rglob("*.py")
        if any(within(name, {"delta"}) for name in imports(ast.parse(module.read_text())))
    }
    assert callers <= {"target/delta/delta_tables.py", "target/delta/public_path.py"}


def test_the_plugin_is_small_and_alone_beside_its_package() -> None:
    plugins = REPOSITORY / "plugins"
    assert sorted(path.name for path in plugins.glob("*.py")) == ["tidemark_plugin.py"]
    assert (plugins / ".airflowignore").read_text().splitlines() == ["tidemark_airflow/"]
    assert len((plugins / "tidemark_plugin.py").read_text().splitlines()) < 50


def test_modules_of_the_plugin_import_nothing_heavy_outside_of_functions() -> None:
    wrong = [
        f"{module.relative_to(REPOSITORY)} imports {name}"
        for module in modules_below("plugins") + modules_below("dags")
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imports(node)
        if within(name, AT_PARSE)
    ]
    assert wrong == []


def test_execute_is_short_in_every_operator_and_sensor() -> None:
    lengths = {
        f"{module.stem}.{cls.name}": 1 + function.end_lineno - function.lineno
        for module in modules_below("plugins")
        for cls in ast.walk(ast.parse(module.read_text()))
        if isinstance(cls, ast.ClassDef)
        for function in cls.body
        if isinstance(function, ast.FunctionDef) and function.name == "execute"
    }
    assert len(lengths) >= 5
    assert {name: lines for name, lines in lengths.items() if lines >= 30} == {}


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda path: path.stem)
def test_every_application_imports_with_airflow_blocked(application: Path) -> None:
    program = (
        "import importlib, importlib.util, sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('airflow', 'tidemark_airflow', 'psycopg'):\n"
        "            raise ImportError(f'{name} is blocked')\n"
        "sys.meta_path.insert(0, Blocked())\n"
        f"spec = importlib.util.spec_from_file_location('application', {str(application)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert callable(module.run)\n"
        # They come in beside the session, see run_application.
        "assert not {'pyarrow', 'numpy'} & set(sys.modules)\n"
        "importlib.import_module(module.NEEDS)\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "include")},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr


def test_there_is_an_application() -> None:
    assert [path.stem for path in APPLICATIONS] == ["compact_tables", "follow_plans", "merge_batch", "replay_tables"]


def test_no_file_has_a_name_that_says_nothing() -> None:
    nothing = {"utils", "util", "helpers", "helper", "common", "base", "core", "types", "misc"}
    named = [
        str(path.relative_to(REPOSITORY))
        for place in ("dags", "plugins", "include", "spark_apps", "tests", "benchmarks")
        for path in modules_below(place)
        if path.stem in nothing
    ]
    assert named == []


MOST_MODULES_OF_A_FOLDER = 15
MOST_MODULES_ON_TOP = 10

LIBRARY_MODULES = {
    ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(LIBRARY.rglob("*.py"))
}


def test_a_folder_of_the_library_can_be_taken_in_at_a_glance() -> None:
    modules = Counter(path.parent for path in LIBRARY_MODULES.values() if not path.name.startswith("__"))
    assert len(modules) > 10, "the library has no folders: the rule says nothing"
    assert {folder.name: n for folder, n in modules.items() if n > MOST_MODULES_OF_A_FOLDER} == {}
    assert modules[LIBRARY] <= MOST_MODULES_ON_TOP


def test_a_class_and_a_file_have_names_of_their_own() -> None:
    paths = [*LIBRARY_MODULES.values(), *modules_below("plugins")]
    classes = Counter(
        node.name for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    files = Counter(path.name for path in paths if not path.name.startswith("__"))
    assert [name for name, n in classes.items() if n > 1] == []
    assert [name for name, n in files.items() if n > 1] == []


def test_no_module_imports_what_imports_it() -> None:
    """Whoever reads one module of a circle has to read them all."""
    needs = {name: set(_imported_modules(path)) - {name} for name, path in LIBRARY_MODULES.items()}
    assert sum(map(len, needs.values())) > len(needs), "the rule finds no imports"
    while ready := {name for name, needed in needs.items() if not needed}:
        needs = {name: needed - ready for name, needed in needs.items() if name not in ready}
    assert sorted(needs) == [], "these import each other, or what does"


def _imported_modules(path: Path) -> Iterator[str]:
    for name in imports(_at_run_time(ast.parse(path.read_text()))):
        known = next((n for n in (name, name.rpartition(".")[0]) if n in LIBRARY_MODULES), None)
        if known is not None:
            yield known


def _at_run_time(tree: ast.Module) -> ast.Module:
    """Without what is imported for types alone."""
    body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))]
    return ast.Module(body=body, type_ignores=[])
