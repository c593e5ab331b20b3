"""Fetches jars into .tidemark/jars: `python -m sandbox.setup.jars [delta|yarn|google|azure]`.

Delta's and S3's are what set-up needs, YARN's and those of the other stores what their tests need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandbox.checkout import this_checkout
from tidemark.errors import TidemarkError
from tidemark.spark_submit.jar_download import fetch
from tidemark.spark_submit.jar_versions import JarSet, azure_jars, delta_jars, google_jars, listed, s3_jars


def yarn_jars() -> JarSet:
    """Hadoop's MiniYARNCluster, and what of other projects it wants: 60 MB for the tests of clusters alone."""
    jars = listed(Path(__file__).with_name("yarn_jars.txt"), "yarn/")
    excludes = ("org.slf4j:*", *(f"org.apache.hadoop:hadoop-client-{part}" for part in ("api", "runtime")))
    return JarSet("YARN", jars, tuple(jar.coordinates for jar in jars), excludes)


def needed() -> tuple[JarSet, ...]:
    """What every checkout has."""
    return delta_jars(), s3_jars()


SETS: Final = {
    "delta": needed,
    "yarn": lambda: (yarn_jars(),),
    "google": lambda: (google_jars(),),
    "azure": lambda: (azure_jars(),),
}


def main(arguments: Sequence[str]) -> int:
    try:
        for wanted in SETS[arguments[0] if arguments else "delta"]():
            fetch(wanted, this_checkout().jars, os.environ)
    except TidemarkError as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
