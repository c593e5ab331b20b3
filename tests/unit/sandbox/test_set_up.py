"""What the set-up of a checkout does to what is there already."""

from __future__ import annotations

from pathlib import Path

from sandbox.checkout import Checkout
from sandbox.setup import set_up


def test_an_environment_that_venv_links_to_keeps_its_packages(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "package.py").write_text("")
    checkout = Checkout(tmp_path / "checkout")
    checkout.logs.mkdir(parents=True)
    checkout.venv.symlink_to(elsewhere)
    set_up._environment(checkout)
    assert (elsewhere / "package.py").exists()
    assert checkout.python.exists()
    assert not checkout.venv.is_symlink()
