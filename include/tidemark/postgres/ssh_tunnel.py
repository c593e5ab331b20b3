"""Opens connections to a server through an SSH host, by this machine's program `ssh`.

An Airflow connection names its SSH connection by the extra `ssh_conn_id`. In a connection string the password's place
then holds a recipe with the SSH host and the password, as `login_tokens` has one. `postgres_session` opens the way at
each connect: libpq connects to a port of this process on the loopback, and each connection there gets an `ssh -W` of
its own, whose input and output are the socket. So no bytes pass through Python, an SSH host needs no shell, and an
`ssh` ends with its connection, also if this process is killed. `host` stays the server's name, for TLS.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from tidemark.errors import SshTunnelFailed

_RECIPE: Final = "tidemark-ssh:"
_LOOPBACK: Final = "127.0.0.1"
_SECRET: Final = "TIDEMARK_SSH_SECRET"
_PROMPT: Final = f"#!/bin/sh\nprintf '%s\\n' \"${_SECRET}\"\n"
# ssh gives up a host that does not answer, and ends a connection whose host vanished, as sessions do.
_OPTIONS: Final = ("ConnectTimeout=10", "ServerAliveInterval=20", "ServerAliveCountMax=3", "LogLevel=INFO")


def recipe(ssh: Mapping[str, Any], password: str | None) -> str:
    """The text in place of the password. `ssh` has host, and may have port, user, password, key_file, private_key,
    passphrase, host_key, any_host_key."""
    return _RECIPE + json.dumps({"ssh": dict(ssh), "password": password})


def is_recipe(password: str) -> bool:
    return password.startswith(_RECIPE)


def without_ssh(password: str) -> str:
    """The database's password, or the recipe of its login token."""
    return str(json.loads(password.removeprefix(_RECIPE))["password"] or "")


def open_way(password: str, parameters: Mapping[str, Any]) -> Tunnel:
    """Open the tunnel of a recipe to host and port of a connection; one per process and server. Raises
    SshTunnelFailed."""
    ssh = json.loads(password.removeprefix(_RECIPE))["ssh"]
    server = (str(parameters["host"]), int(parameters.get("port") or 5432))
    return _tunnel(os.getpid(), json.dumps(ssh, sort_keys=True), server)


class Tunnel:
    """Listens on a port of the loopback as long as the process lives."""

    def __init__(self, ssh: Mapping[str, Any], server: tuple[str, int]) -> None:
        self.host = str(ssh["host"])
        self._program = shutil.which("ssh")
        if self._program is None:
            raise SshTunnelFailed(host=self.host, detail="the program ssh is not installed here")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it goes with the process
        self._environment = dict(os.environ)
        self._arguments = self._command(ssh, server)
        self._listener = socket.create_server((_LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, name=f"ssh {self.host}", daemon=True).start()

    def failure(self) -> str:
        """The last lines that an `ssh` of this tunnel wrote since `parameters`; empty if it wrote none."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        return "; ".join(list(filter(None, lines))[-2:])

    def parameters(self) -> dict[str, Any]:
        """The parameters with which libpq connects in place of host and port."""
        self._errors.truncate(0)
        return {"hostaddr": _LOOPBACK, "port": self.port}

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                subprocess.Popen(
                    self._arguments,
                    stdin=client.fileno(),
                    stdout=client.fileno(),
                    stderr=self._errors,
                    env=self._environment,
                    start_new_session=True,  # a Ctrl-C is for this process, which ends its sessions by itself
                )

    def _command(self, ssh: Mapping[str, Any], server: tuple[str, int]) -> list[str]:
        options = list(_OPTIONS)
        if ssh.get("any_host_key"):
            options += ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        else:
            options.append("StrictHostKeyChecking=yes")
        if key := ssh.get("host_key"):
            port = int(ssh.get("port") or 22)
            name = self.host if port == 22 else f"[{self.host}]:{port}"
            words = str(key).split()
            known = " ".join(words[:2]) if len(words) > 1 else f"ssh-rsa {key}"
            line = f"{name} {known}\n"
            options.append(f"UserKnownHostsFile={self._in_memory(line)}")
        identity = ssh.get("key_file")
        if ssh.get("private_key"):
            identity = self._in_memory(f"{str(ssh['private_key']).strip()}\n")
        if identity:
            options += [f"IdentityFile={identity}", "IdentitiesOnly=yes"]
        if secret := ssh.get("passphrase" if identity else "password"):
            self._environment |= {
                "SSH_ASKPASS": self._in_memory(_PROMPT, 0o700),
                "SSH_ASKPASS_REQUIRE": "force",
                _SECRET: str(secret),
            }
            options.append("NumberOfPasswordPrompts=1")
        else:
            options.append("BatchMode=yes")
        host, port = server
        return [
            str(self._program),
            *(word for option in options for word in ("-o", option)),
            *(("-p", str(ssh["port"])) if ssh.get("port") else ()),
            *(("-l", str(ssh["user"])) if ssh.get("user") else ()),
            *("-W", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"),
            *("--", self.host),
        ]

    def _in_memory(self, text: str, mode: int = 0o600) -> str:
        """A file in memory, which ends with this process."""
        if not hasattr(os, "memfd_create"):
            raise SshTunnelFailed(host=self.host, detail="this system needs a key_file without a passphrase")
        descriptor = os.memfd_create("tidemark-ssh")
        os.write(descriptor, text.encode())
        os.fchmod(descriptor, mode)
        return f"/proc/{os.getpid()}/fd/{descriptor}"


@cache
def _tunnel(process: int, ssh: str, server: tuple[str, int]) -> Tunnel:
    """The tunnel of this `process`: threads, and so tunnels, do not survive a fork."""
    return Tunnel(json.loads(ssh), server)
