"""`make test`, `make lint`, `make bench`: the tools, one after another, with what each says and how long it took."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from standalone.checkout import Checkout


def lint(checkout: Checkout) -> int:
    return _all(checkout, _lint(checkout))


def test(checkout: Checkout) -> int:
    cache, temporary = checkout.made / "cache" / "pytest", checkout.made / "tmp" / "pytest"
    temporary.parent.mkdir(exist_ok=True)
    pytest = ["pytest", "tests", "-q", "--durations=10", "-o", f"cache_dir={cache}", f"--basetemp={temporary}"]
    return _all(checkout, {**_lint(checkout), "tests": pytest})


def bench(checkout: Checkout) -> int:
    """What the numbers in README come from."""
    scripts = sorted((checkout.root / "benchmarks").glob("[!_]*.py"))
    return _all(checkout, {f"benchmarks/{s.name}": [str(s)] for s in scripts})


def _lint(checkout: Checkout) -> dict[str, list[str]]:
    cache = checkout.made / "cache"
    ruff = ["--cache-dir", str(cache / "ruff"), "."]
    return {
        "format": ["ruff", "format", "--check", "--quiet", *ruff],
        "lint": ["ruff", "check", "--quiet", *ruff],
        "types": ["mypy", "--cache-dir", str(cache / "mypy")],
    }


def _all(checkout: Checkout, commands: dict[str, list[str]]) -> int:
    """Run every command, though an earlier one failed; the worst code is the answer."""
    results: list[tuple[str, int, float]] = []
    for what, command in commands.items():
        print(f"— {what}: {' '.join(Path(part).name for part in command)}", flush=True)
        started = time.monotonic()
        module = [] if command[0].endswith(".py") else ["-m"]
        code = subprocess.run(
            [str(checkout.python), *module, *command], cwd=checkout.root, env=checkout.environment(os.environ)
        ).returncode
        results.append((what, code, time.monotonic() - started))
    print()
    for what, code, seconds in results:
        print(f"  {what:<24}{'passed' if code == 0 else f'FAILED ({code})':<12}{seconds:>8.1f} s")
    return max((code for _, code, _ in results), default=0)
