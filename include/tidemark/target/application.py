"""Runs the parts that every Spark application shares: arguments, log, session, and an error exit without row values.

Starting a session takes two seconds, in which Python waits for the JVM. Meanwhile a thread imports the modules of the
application's work: pyarrow, numpy, Delta's Python package and the library's own. Importing them afterwards would add
more than a second.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyspark.sql import SparkSession

from tidemark.errors import TidemarkError
from tidemark.staging.pandas_import import block_pandas_import
from tidemark.target.delta.session import require_fence, start
from tidemark.target.merge_failures import as_disk_full, as_refusal, condition_of, stack_frames

log = logging.getLogger(__name__)


def run_application(
    name: str,
    purpose: str,
    work: Callable[[SparkSession, str], object],
    *,
    needs: str | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Call `work` with a session and the URI that `--manifest` names.

    Returns the exit status: 0, or 1 if the driver itself failed. An error of one table is not an exit status: `work`
    writes it to the result file. `needs` is the module that `work` imports; a thread imports it while the session
    starts. Older application scripts, deployed separately from the library, do not pass it.
    """
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--manifest", required=True, help="URI of plan.json")
    uri: str = parser.parse_args(arguments).manifest
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    if needs is not None:
        threading.Thread(target=_import, args=(needs,), name="imports").start()
    try:
        spark = start(name)
        try:
            require_fence(spark, uri)
            work(spark, uri)
        finally:
            spark.stop()
    except TidemarkError as failed:
        log.error("%s", failed)
        return 1
    except Exception as failed:  # its message may quote a row's value, so it is not logged
        refused = as_disk_full(failed, uri) or as_refusal(failed, uri, uri)
        if refused is not None:
            log.error("%s", refused)
        log.error("The driver failed with %s, raised at:\n%s", condition_of(failed), stack_frames(failed))
        return 1
    return 0


def _import(module: str) -> None:
    """Import the module and ignore errors: the import statement of the code that needs the module raises them again."""
    with suppress(Exception):
        block_pandas_import()
        importlib.import_module(module)
