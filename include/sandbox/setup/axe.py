"""axe-core -> .tidemark/axe: `python -m sandbox.setup.axe`, which `make page` calls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sandbox.checkout import Checkout, this_checkout
from sandbox.setup import apart

LOCK: Final = "include/sandbox/setup/axe.txt"
FOLDER: Final = Path(".tidemark", "axe")
# Below the checkout.
SCRIPT: Final = FOLDER / "axe_playwright_python" / "axe.min.js"


def install(checkout: Checkout) -> None:
    apart.install(checkout, "axe-core", LOCK, FOLDER)


if __name__ == "__main__":
    install(this_checkout())
