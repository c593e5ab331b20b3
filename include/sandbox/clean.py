"""`make clean`: stop what runs, and remove exactly what set-up, demo and tests have made. Standard library only.

It works with whatever Python there is, since .venv may be broken or gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from sandbox.checkout import Checkout, this_checkout
from sandbox.services.postgres import folders_outside


def clean(checkout: Checkout) -> None:
    if (checkout.made / "services.json").exists() and checkout.python.exists():
        subprocess.run([checkout.python, "-m", "sandbox", "down"], env=checkout.environment(os.environ))
    for folder in folders_outside(checkout.root):
        shutil.rmtree(folder)
    for folder in (checkout.venv, checkout.made):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    clean(this_checkout())
