"""A bare checkout -> Java, .venv from the lock, Delta's jars: `python -m sandbox.setup`. Standard library only.

`python -m sandbox.setup packages` makes .venv alone, which is all that `make unit` and `make lint` need.

Each part leaves a stamp that holds what it was made from (the lock's hash, Python's version, the checkout's place), so
that a second call only compares stamps and needs no network. A part that was interrupted has no stamp, so it is done
again.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.checkout import Checkout, this_checkout
from sandbox.setup import java, system_packages
from sandbox.setup.lock import entries_of
from sandbox.setup.uv_settings import uv_settings
from sandbox.steps import StepFailed, Steps, fail, run
from tidemark.spark_submit.jar_versions import delta_jars, s3_jars


def set_up(checkout: Checkout, *, packages_alone: bool = False) -> None:
    """Do whatever of the set-up is not done yet. Raises StepFailed with what to type."""
    started = time.monotonic()
    steps = Steps()
    with _alone(checkout):
        if packages_alone:
            _packages(checkout, steps)
        else:
            _java(checkout, steps)
            _packages(checkout, steps)
            _jars(checkout, steps)
            _spark_settings(checkout)
        _command(checkout)
    if steps.took:
        print(f"  set-up done in {time.monotonic() - started:.0f} s; it lies in .venv and .tidemark", flush=True)


@contextmanager
def _alone(checkout: Checkout) -> Iterator[None]:
    """Two calls at once: the second waits, and then finds everything done."""
    checkout.made.mkdir(exist_ok=True)
    with (checkout.made / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _stamped(stamp: Path, content: str) -> bool:
    return stamp.exists() and stamp.read_text() == content


def _stamp(stamp: Path, content: str) -> None:
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(content)


# --- Python packages -------------------------------------------------------------------------------------------------


def _packages(checkout: Checkout, steps: Steps) -> None:
    lock = checkout.root / "requirements.txt"
    made_from = f"{hashlib.sha256(lock.read_bytes()).hexdigest()}\n{sys.version}\n{checkout.root}\n"
    stamp = checkout.stamps / "packages"
    if _stamped(stamp, made_from) and checkout.python.exists():
        return
    stamp.unlink(missing_ok=True)
    with steps.step("virtual environment in .venv"):
        _environment(checkout)
    packages = sum(1 for line in lock.read_text().splitlines() if "==" in line and not line.startswith((" ", "#")))
    with steps.step(f"{packages} Python packages from requirements.txt"):
        _install(checkout, lock)
    _stamp(stamp, made_from)


def _environment(checkout: Checkout) -> None:
    """Create .venv with pip in it. Debian packages `ensurepip` apart; where pip itself is installed, it will do."""
    with_pip = importlib.util.find_spec("ensurepip") is not None
    if not with_pip and importlib.util.find_spec("pip") is None:
        manager = system_packages.manager()
        package = "python3.11-venv"
        if manager is None or manager.program != "apt-get":
            raise StepFailed("This Python has neither ensurepip nor pip: install one of them, then call make again.")
        if not manager.may_install:
            raise StepFailed(f"This Python lacks ensurepip: type `{manager.command(package)}`, then call make again.")
        system_packages.install(manager, [package], checkout.logs / "ensurepip.log", os.environ)
        with_pip = True
    log = checkout.logs / "venv.log"
    options = [] if with_pip else ["--without-pip"]
    if checkout.venv.is_symlink():  # --clear would empty the environment that it names
        checkout.venv.unlink()
    run([sys.executable, "-m", "venv", "--clear", *options, checkout.venv], log, env=os.environ)
    if not with_pip:
        _bootstrap(checkout, [sys.executable, "-m", "pip", "--python", checkout.python], ("pip",))


def _install(checkout: Checkout, lock: Path) -> None:
    """With uv, itself from the lock, in half a minute; where it cannot be had or fails, with pip, in some minutes.

    Spark comes as source, and what builds it is from the lock too: without `--no-build-isolation` both would fetch the
    newest setuptools, unseen by any hash, and run it.
    """
    cache = checkout.made / "cache" / "uv"
    pip: list[str | Path] = [checkout.python, "-m", "pip"]
    env = {**os.environ, "VIRTUAL_ENV": str(checkout.venv)}
    only_lock = ["--no-deps", "--require-hashes", "--no-build-isolation", "-r", lock]
    _bootstrap(checkout, pip, ("pip", "setuptools"))
    try:
        _bootstrap(checkout, pip, ("uv",))
        temporary = checkout.made / "tmp"
        temporary.mkdir(exist_ok=True)
        with_settings = {"UV_CACHE_DIR": str(cache), **uv_settings(checkout.python), **env, "TMPDIR": str(temporary)}
        uv = [checkout.venv / "bin" / "uv", "pip", "install", *only_lock]
        run(uv, checkout.logs / "packages.log", env=with_settings)
    except StepFailed:
        run([*pip, "install", *only_lock], checkout.logs / "packages-pip.log", env=env)
    shutil.rmtree(cache, ignore_errors=True)  # twice the size of what it installed


def _bootstrap(checkout: Checkout, pip: list[str | Path], packages: tuple[str, ...]) -> None:
    """What installs the rest, from the lock and nowhere else. The first pip is Python's own or the machine's."""
    name = "-".join(packages)
    entries = checkout.made / f"{name}.txt"
    entries.write_text(entries_of((checkout.root / "requirements.txt").read_text(), packages))
    options = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    run([*pip, "install", *options, "-r", entries], checkout.logs / f"{name}.log", env=os.environ)


# --- Java ------------------------------------------------------------------------------------------------------------


def _java(checkout: Checkout, steps: Steps) -> None:
    noted = checkout.java_home
    if noted is not None and java.version(noted) in java.VERSIONS:
        return
    home = java.find(os.environ)
    if home is None:
        manager = system_packages.manager()
        if manager is None or not manager.may_install:
            raise StepFailed(java.advice(manager))
        with steps.step(f"Java with {manager.program}"):
            system_packages.install(manager, java.packages(manager), checkout.logs / "java.log", os.environ)
            home = java.find(os.environ)
        if home is None:
            raise StepFailed(f"{manager.program} installed no Java that is found. {java.advice(None)}")
    (checkout.made / "java_home").write_text(f"{home}\n")
    print(f"  Java {java.version(home)} in {home}", flush=True)


# --- Delta's jars ----------------------------------------------------------------------------------------------------


def _jars(checkout: Checkout, steps: Steps) -> None:
    stamp = checkout.stamps / "jars"
    delta, s3 = delta_jars(), s3_jars()
    needed = (*delta.jars, *s3.jars)
    made_from = "".join(f"{jar.file} {jar.sha256}\n" for jar in needed)
    if _stamped(stamp, made_from) and all((checkout.jars / jar.file).exists() for jar in needed):
        return
    with steps.step(f"{len(delta.jars)} jars of Delta Lake, {len(s3.jars)} of Hadoop and AWS for S3"):
        env = checkout.environment(os.environ)
        # Spark's own settings of the machine count here: spark.jars.ivySettings, spark.jars.repositories.
        env.pop("SPARK_CONF_DIR")
        env.update({k: os.environ[k] for k in ("SPARK_CONF_DIR",) if k in os.environ})
        run([checkout.python, "-m", "sandbox.setup.jars"], checkout.logs / "jars.log", env=env)
    _stamp(stamp, made_from)


# --- Spark's settings on this machine --------------------------------------------------------------------------------

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def _spark_settings(checkout: Checkout) -> None:
    folder = checkout.made / "spark"
    folder.mkdir(exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    # Named, since Spark makes its own one in a folder beside the checkout where the path has a space ("%20").
    warehouse = checkout.made / "tmp" / "spark-warehouse"
    (folder / "spark-defaults.conf").write_text(f"spark.sql.warehouse.dir {warehouse}\n")


# --- the command line of this checkout -------------------------------------------------------------------------------


def _command(checkout: Checkout) -> None:
    """`.venv/bin/tidemark`: the command as a wheel would install it, with the connections of `make up`."""
    command = checkout.venv / "bin" / "tidemark"
    include, python = shlex.quote(str(checkout.root / "include")), shlex.quote(str(checkout.python))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={include} exec {python} -m sandbox tidemark "$@"\n')
    command.chmod(0o755)


def main(arguments: list[str]) -> int:
    this = ".".join(map(str, sys.version_info[:3]))
    if not this.startswith("3.11."):
        return fail(
            StepFailed(f"Tidemark needs Python 3.11; this is {this}. Name one: make PYTHON=/path/to/python3.11")
        )
    try:
        set_up(this_checkout(), packages_alone=arguments == ["packages"])
    except StepFailed as failed:
        return fail(failed)
    return 0
