"""A server as a command: what to start, and the variables that are its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Daemon:
    """`name` is that of its log, too."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
