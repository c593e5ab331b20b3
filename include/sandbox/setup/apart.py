"""Installs a wheel apart from the environment, for the one suite that needs it: a lock file -> a folder.

It is not in requirements.txt, since `make demo` and `make test` run where it cannot, or without it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sandbox.checkout import Checkout
from sandbox.steps import Steps, run


def install(checkout: Checkout, what: str, lock: str, folder: Path) -> None:
    """Nothing where it is already; made aside and renamed, so that one that was interrupted leaves nothing. `lock` and
    `folder` are relative to the checkout."""
    there = checkout.root / folder
    if there.exists():
        return
    aside = there.with_suffix(".new")
    shutil.rmtree(aside, ignore_errors=True)
    options = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command = [checkout.python, "-m", "pip", "install", *options, "--target", aside, "-r", checkout.root / lock]
    with Steps().step(what):
        run(command, checkout.logs / f"{there.name}.log", env=os.environ)
    aside.rename(there)
