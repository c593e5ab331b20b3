"""Runs the parts that every Spark application shares: arguments, log, session, and an error exit without values.

Starting a session takes two seconds, in which Python waits for the JVM. A thread imports the work's modules meanwhile:
pyarrow, numpy, Delta's Python, and the library's own. Imported later, they would take more than another second.
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
from tidemark.target.merge_failures import as_full, as_refusal, condition_of, told

log = logging.getLogger(__name__)


def run_application(
    name: str,
    purpose: str,
    work: Callable[[SparkSession, str], object],
    *,
    needs: str | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Call `work` with a session and the URI that `--manifest` names. Returns the exit status: 0, or 1 if the driver
    itself could not work; what became of each table is in the result that `work` leaves.

    `needs` is the module that `work` imports, and that had better be there when the session is. Applications of an
    older state, deployed apart from the library, do not say it.
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
    except Exception as failed:  # what it says may quote a value
        refused = as_full(failed, uri) or as_refusal(failed, uri, uri)
        if refused is not None:
            log.error("%s", refused)
        log.error("The driver failed with %s, raised at:\n%s", condition_of(failed), told(failed))
        return 1
    return 0


def _import(module: str) -> None:
    """What goes wrong is said by whoever imports it because he needs it."""
    with suppress(Exception):
        block_pandas_import()
        importlib.import_module(module)
