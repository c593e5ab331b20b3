"""Machines of a network of their own on this machine: a prefix for commands, and the address where they are reached.

As root each one is a network namespace, joined to the others by a bridge, and of this machine's files it has what a
worker's image would have: Spark's folder, its own folder, and what it is given besides; neither checkout nor virtual
environment. Where namespaces may not be made they are loopback addresses, and share the files of this machine: then
`apart` is False, and what a test claims of it is only that the addresses differ.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import local_spark

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Machine:
    """`namespace` is empty where it is a mere address."""

    address: str
    namespace: str = ""

    @property
    def apart(self) -> bool:
        return bool(self.namespace)

    def command(self, command: Sequence[str]) -> list[str]:
        """The command as one of this machine, which sees all files."""
        return ["ip", "netns", "exec", self.namespace, *command] if self.apart else [*command]

    def command_of_an_image(self, command: Sequence[str], has: Mapping[Path, Path]) -> list[str]:
        """The command as one of this machine, with nothing of the checkout but the folders of `has` (where they are ->
        where it finds them)."""
        if not self.apart:
            return [*command]
        aside = [f"mkdir /mnt/{n} && mount --bind {_quoted(there)} /mnt/{n}" for n, there in enumerate(has)]
        hidden = [f"mount -t tmpfs none {_quoted(folder)}" for folder in _hidden()]
        shown = [
            f"mkdir -p {_quoted(seen)} && mount --bind /mnt/{n} {_quoted(seen)}" for n, seen in enumerate(has.values())
        ]
        script = ["set -e", "mount -t tmpfs none /mnt", *aside, *hidden, *shown, "cd /", 'exec "$@"']
        return self.command(["unshare", "--mount", "sh", "-c", "\n".join(script), "sh", *command])


def _hidden() -> list[Path]:
    """What no worker has: this checkout, its virtual environment, its jars, and where Python itself is."""
    folders = {
        REPOSITORY,
        Path(sys.prefix).resolve(),
        Path(local_spark.jars().partition(",")[0]).resolve().parent,
        Path(sys.executable).resolve().parents[1],
    }
    # The system's own folder cannot be hidden: its programs are needed. One inside of another is hidden with it.
    own = [folder for folder in folders if folder != Path("/usr")]
    return sorted(folder for folder in own if not any(other in folder.parents for other in own))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


@contextmanager
def network(count: int) -> Iterator[tuple[str, list[Machine]]]:
    """This machine's own address in a network with `count` others, and those."""
    if os.geteuid() != 0 or not _may_make_namespaces():
        yield "127.0.0.1", [Machine(f"127.0.0.{n}") for n in range(2, count + 2)]
        return
    with ExitStack() as made:
        number, bridge = _new_bridge()
        made.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"10.213.{number}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        machines = []
        for n in range(2, count + 2):
            machine = Machine(f"10.213.{number}.{n}", f"{bridge}-{n}")
            _ip("netns", "add", machine.namespace)
            made.callback(_ip, "netns", "del", machine.namespace)
            outer = f"{bridge}v{n}"
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _ip("-n", machine.namespace, "link", "set", interface, "up")
            machines.append(machine)
        yield f"10.213.{number}.1", machines


def _new_bridge() -> tuple[int, str]:
    """The first number that nobody has: to make the bridge is to take it."""
    for number in range(250):
        if _tried("link", "add", f"tidemark{number}", "type", "bridge"):
            return number, f"tidemark{number}"
    raise RuntimeError("there are 250 bridges of tests; remove those that are left: ip link del tidemark<n>")


def _may_make_namespaces() -> bool:
    """Containers often have root and not this right."""
    probe = f"tidemark-probe-{os.getpid()}"
    if not _tried("netns", "add", probe):
        return False
    _ip("netns", "del", probe)
    return (
        subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
        == 0
    )


def _tried(*arguments: str) -> bool:
    try:
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
