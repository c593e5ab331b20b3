"""What the machine's pip is told about indexes, certificates and proxies -> the same in uv's words.

uv does not read it, and behind a company's proxy nothing else may say so.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def uv_settings(python: Path) -> dict[str, str]:
    """For uv's environment, of the pip that this Python has."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    pip: dict[str, str] = {}
    # "global.index-url='…'", "install.find-links='…'", ":env:.cert='…'": the environment counts most.
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        pip[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ").strip()
    words = {
        "index-url": ("UV_DEFAULT_INDEX",),
        "extra-index-url": ("UV_INDEX",),
        "find-links": ("UV_FIND_LINKS",),
        "trusted-host": ("UV_INSECURE_HOST",),
        "cert": ("SSL_CERT_FILE",),
        "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    }
    settings = {uv: pip[name] for name, uvs in words.items() if pip.get(name) for uv in uvs}
    # pip looks in every index; the hashes decide what may come in.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **settings}


def uv_environment(python: Path) -> dict[str, str]:
    """This process's environment, and below it those settings."""
    return {**uv_settings(python), **os.environ}
