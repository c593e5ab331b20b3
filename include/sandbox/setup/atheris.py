"""Atheris, a fuzzer -> .tidemark/atheris: `python -m sandbox.setup.atheris`, which `make fuzz` calls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sandbox.checkout import Checkout, this_checkout
from sandbox.setup import apart

LOCK: Final = "include/sandbox/setup/atheris.txt"
# Below the checkout.
FOLDER: Final = Path(".tidemark", "atheris")


def install(checkout: Checkout) -> None:
    apart.install(checkout, "Atheris", LOCK, FOLDER)


if __name__ == "__main__":
    install(this_checkout())
