"""What every Spark application is around its work: arguments, log, session, and an end that quotes no value."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from tidemark.errors import TidemarkError
from tidemark.target.failures import as_refusal, condition_of, told
from tidemark.target.session import require_fence, start

log = logging.getLogger(__name__)


def run_application(
    name: str, purpose: str, work: Callable[[SparkSession, str], object], arguments: Sequence[str] | None = None
) -> int:
    """Call `work` with a session and the URI that `--manifest` names. Returns the exit status: 0, or 1 if the driver
    itself could not work; what became of each table is in the result that `work` leaves.
    """
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--manifest", required=True, help="URI of plan.json")
    uri: str = parser.parse_args(arguments).manifest
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    try:
        spark = start(name)
        try:
            require_fence(dict(spark.sparkContext.getConf().getAll()), uri)
            work(spark, uri)
        finally:
            spark.stop()
    except TidemarkError as failed:
        log.error("%s", failed)
        return 1
    except Exception as failed:  # what it says may quote a value
        refused = as_refusal(failed, uri, uri)
        if refused is not None:
            log.error("%s", refused)
        log.error("The driver failed with %s, raised at:\n%s", condition_of(failed), told(failed))
        return 1
    return 0
