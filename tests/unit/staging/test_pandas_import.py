"""What a process does before it begins, seen in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.capture import REPOSITORY

SESSION = """
from tidemark.target import application

class Session:
    sparkContext = property(lambda self: self)
    getConf = lambda self: self
    getAll = lambda self: []
    stop = lambda self: print("stopped")

application.start = lambda name: Session()
"""
USE = "import sys, pyarrow; pyarrow.array([1]); print('pandas' in sys.modules)"


@pytest.mark.parametrize(
    ("before", "imported"),
    [("", True), ("from tidemark.staging.pandas_import import block_pandas_import; block_pandas_import()", False)],
    ids=["as pyarrow has it", "spared"],
)
def test_pyarrow_imports_pandas_unless_it_is_kept_from_it(before: str, imported: bool) -> None:
    assert _says(f"{before}\n{USE}") == str(imported)


def test_pandas_can_be_imported_afterwards() -> None:
    output = _says(
        "from tidemark.staging.pandas_import import block_pandas_import; block_pandas_import()\n"
        "import pandas; print(pandas.Series([1]).sum())"
    )
    assert output == "1"


def test_a_driver_imports_what_its_work_needs_while_its_session_starts_and_no_pandas() -> None:
    program = f"""
import importlib.util, sys, threading
from tidemark.errors import DeltaMissing
from tidemark.target import application

def start(name):
    for thread in set(threading.enumerate()) - {{threading.current_thread()}}:
        thread.join(60)
    print(hasattr(sys.modules.get(merge.NEEDS), "apply_plan"))
    raise DeltaMissing(version="4.2.0")

spec = importlib.util.spec_from_file_location("merge_batch", {str(REPOSITORY / "spark_apps" / "merge_batch.py")!r})
merge = importlib.util.module_from_spec(spec)
spec.loader.exec_module(merge)
application.start = start
status = application.run_application("a", "b", merge.run, needs=merge.NEEDS, arguments=["--manifest", "plan.json"])
print(status, "pandas" in sys.modules)
"""
    assert _says(program) == "True\n1 False"


def test_a_driver_hears_what_is_wrong_with_its_work_from_its_work() -> None:
    program = f"""
{SESSION}
def work(spark, uri):
    import no_such_module

print(application.run_application("a", "b", work, needs="no_such_module", arguments=["--manifest", "plan.json"]))
"""
    assert _says(program) == "stopped\n1"


def test_an_application_of_an_older_state_works_with_the_library_of_today() -> None:
    program = f"""
{SESSION}
print(application.run_application("a", "b", lambda spark, uri: print(uri), arguments=["--manifest", "plan.json"]))
"""
    assert _says(program) == "plan.json\nstopped\n0"


def _says(program: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(REPOSITORY / "include")},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip()
