"""Runs what make calls: `python -m sandbox demo`, `test`, `unit`, `lint`, …; `python -m sandbox tidemark …` is what
`.venv/bin/tidemark` calls."""

from __future__ import annotations

import os
import sys

from sandbox.checkout import Checkout, this_checkout
from sandbox.checks import suites, versions
from sandbox.checks.coverage import coverage
from sandbox.release.distributions import dist, release
from sandbox.services import processes
from sandbox.setup.lock import beyond
from sandbox.setup.uv_settings import uv_environment
from sandbox.steps import StepFailed, end_by_exception, fail, run

CELERY = "include/sandbox/setup/celery.txt"


def _demo(checkout: Checkout) -> int:
    from sandbox.demo import story  # needs Spark, which costs a second that the others need not wait

    return int(story.run_demo(checkout))


def _lock(checkout: Checkout) -> int:
    """requirements.in -> requirements.txt, and what only the containers need -> include/sandbox/setup/celery.txt: every
    platform's hashes, no host name of any registry."""
    options = ("--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url")
    compile_lock = [checkout.venv / "bin" / "uv", "pip", "compile", *options, "--custom-compile-command", "make lock"]
    env = {**os.environ, "UV_CACHE_DIR": str(checkout.made / "cache" / "uv")}
    lock = checkout.root / "requirements.txt"
    command = [*compile_lock, "--upgrade", "requirements.in", "--output-file", lock.name]
    run(command, checkout.logs / "lock.log", env=env, cwd=checkout.root)
    wanted, compiled = checkout.made / "celery.in", checkout.made / "celery.txt"
    wanted.write_text("apache-airflow-providers-celery\n")
    command = [*compile_lock, "--constraints", lock, wanted, "--output-file", compiled]
    run(command, checkout.logs / "lock-celery.log", env=env, cwd=checkout.root)
    (checkout.root / CELERY).write_text(beyond(compiled.read_text(), lock.read_text()))
    return 0


def _site(checkout: Checkout) -> int:
    """docs/ -> .tidemark/site, with the generator in an environment of its own; a link that leads nowhere fails it."""
    settings = {"UV_CACHE_DIR": str(checkout.made / "cache" / "uv"), "NO_MKDOCS_2_WARNING": "1"}
    generator = (checkout.venv / "bin" / "uv", "tool", "run", "--quiet", "--from", "mkdocs-material==9.8.1")
    run(
        [*generator, "mkdocs", "build", "--strict"],
        checkout.logs / "site.log",
        env={**uv_environment(checkout.python), **settings},
        cwd=checkout.root,
    )
    print(f"The site lies in {checkout.made / 'site' / 'index.html'}")
    return 0


def _tidemark(checkout: Checkout, arguments: list[str]) -> int:
    """The library's command line, which also knows the connections of `make up`. What is set already wins."""
    from tidemark.__main__ import main as command_line

    for name, value in processes.Services.read(checkout).environment().items():
        os.environ.setdefault(name, value)
    return command_line(arguments)


COMMANDS = {
    "demo": _demo,
    "up": processes.up,
    "down": processes.down,
    "test": suites.test,
    "unit": suites.unit,
    "coverage": coverage,
    "lint": suites.lint,
    "simulation": suites.simulation,
    "soak": suites.soak,
    "witnesses": suites.witnesses,
    "faults": suites.faults,
    "fuzz": suites.fuzz,
    "clusters": suites.clusters,
    "tutorial": suites.tutorial,
    "scheduler": suites.scheduler,
    "page": suites.page,
    "bench": suites.bench,
    "bench-latency": suites.bench_latency,
    "site": _site,
    "lock": _lock,
    "versions": versions.versions,
    "dist": dist,
    "release": release,
}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["tidemark"]:
        return _tidemark(this_checkout(), arguments[1:])
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        print(f"usage: python -m sandbox {'|'.join(COMMANDS)}", file=sys.stderr)
        return 2
    end_by_exception()
    try:
        return COMMANDS[arguments[0]](this_checkout())
    except StepFailed as failed:
        return fail(failed)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
