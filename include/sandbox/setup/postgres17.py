"""PostgreSQL 17 -> .tidemark/postgres17: `python -m sandbox.setup.postgres17`, which `make faults` calls.

It is apart from requirements.txt, since `make demo` and `make test` run where its wheel cannot (glibc before 2.34).
"""

from __future__ import annotations

from typing import Final

from sandbox.checkout import Checkout, this_checkout
from sandbox.services.postgres import APART
from sandbox.setup import apart

LOCK: Final = "include/sandbox/setup/postgres17.txt"


def install(checkout: Checkout) -> None:
    apart.install(checkout, "PostgreSQL 17", LOCK, APART)


if __name__ == "__main__":
    install(this_checkout())
