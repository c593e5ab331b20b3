"""A real Chromium, without a window: W3C WebDriver as chromedriver speaks it, over plain HTTP.

Debian's packages `chromium` and `chromium-driver`. Source: W3C, "WebDriver".
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.services.postgres import free_port, wait_for

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
SLOW_S = 60


@dataclass(frozen=True, slots=True)
class Browser:
    """One window. Scripts run in the frame that `within` chose last; what they return is JSON."""

    session: str

    def go(self, url: str) -> None:
        self._call("POST", "url", {"url": url})

    def within(self, css: str | None) -> None:
        """Go into this frame of the page, from wherever it was; None: into the page itself."""
        self._call("POST", "frame", {"id": None})
        if css is not None:
            self._call("POST", "frame", {"id": {_ELEMENT: self._element(css)}})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, fact: str, script: str, *arguments: Any, seconds: float = SLOW_S) -> Any:
        """Wait until the expression is true in the page, and return it."""
        return wait_for(fact, lambda: self.run(f"return {script}", *arguments), seconds)

    def click(self, css: str) -> None:
        """As a person: it has to be there, in sight, and not covered."""
        self.wait(f"{css} is there", "document.querySelector(arguments[0]) !== null", css)
        element = self._element(css)
        self.run("arguments[0].scrollIntoView({block: 'center'})", {_ELEMENT: element})
        self._call("POST", f"element/{element}/click", {})

    def type(self, css: str, text: str) -> None:
        self._call("POST", f"element/{self._element(css)}/value", {"text": text})

    def resize(self, width: int, height: int) -> None:
        """The page's own size, whatever the frame of the window takes."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """What the system's setting would say: "light" or "dark"."""
        self._devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._call("GET", "screenshot")))

    def complaints(self) -> list[str]:
        """What the page's console said since the last time, of errors and of what its policy refused."""
        logged = self._call("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def _element(self, css: str) -> str:
        return str(self._call("POST", "element", {"using": "css selector", "value": css})[_ELEMENT])

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        return _ask(method, f"{self.session}/{path}", body)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser that keeps what it keeps in the folder, for the length of a `with` block."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver is not None, "apt-get install chromium-driver"
    assert chromium is not None, "apt-get install chromium"
    port = free_port()
    with (folder / "chromedriver.log").open("w") as log:
        process = subprocess.Popen(
            [driver, f"--port={port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    session = ""
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for("chromedriver answers", lambda: _is_ready(url), SLOW_S)
        session = f"{url}/session/{_ask('POST', f'{url}/session', _wanted(chromium, folder))['sessionId']}"
        yield Browser(session)
    finally:
        if session:
            _ask("DELETE", session, None)
        process.terminate()
        process.wait(SLOW_S)


def _wanted(chromium: str, folder: Path) -> dict[str, Any]:
    arguments = [
        "--headless=new",
        "--disable-gpu",
        "--hide-scrollbars",
        "--lang=en",
        f"--user-data-dir={folder}/profile",
    ]
    if os.geteuid() == 0:
        arguments += ["--no-sandbox", "--disable-dev-shm-usage"]
    options = {"binary": chromium, "args": [*arguments, "--no-proxy-server"]}
    return {
        "capabilities": {
            "alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
        }
    }


def _is_ready(url: str) -> bool:
    try:
        return bool(_ask("GET", f"{url}/status", None)["ready"])
    except OSError:
        return False


def _ask(method: str, url: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with _DIRECT.open(request, timeout=SLOW_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as refused:
        said = json.load(refused)["value"]
        raise AssertionError(f"{said['error']}: {said['message'][:500]}") from None
