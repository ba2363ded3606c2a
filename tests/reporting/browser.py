"""A headless Chromium driven over WebDriver's HTTP protocol by chromedriver: no package needed."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any


def available() -> str | None:
    """Why there is no browser to test with; None where there is one."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed (Debian: chromium, chromium-driver)"
    return None


class Browser:
    """Context manager: one window; `js` runs a function body in the page and returns its value."""

    def __enter__(self) -> Browser:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.profile = tempfile.mkdtemp(prefix="fewnlu-chromium-")
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{port}"
        self.session = ""
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", f"--user-data-dir={self.profile}", "--window-size=1280,1000"]
        options = {"binary": shutil.which("chromium"), "args": flags}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        for _ in range(100):
            try:
                self._call("GET", "/status")
                break
            except OSError:
                time.sleep(0.1)
        found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{found['sessionId']}"
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self.session:
                self._call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            shutil.rmtree(self.profile, ignore_errors=True)

    def _call(self, verb: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body or {}).encode() if verb == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=verb)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def open(self, path: Path, fragment: str = "") -> None:
        self._call("POST", f"{self.session}/url", {"url": "about:blank"})
        self._call("POST", f"{self.session}/url", {"url": path.absolute().as_uri() + fragment})

    def js(self, body: str, *args: Any) -> Any:
        return self._call("POST", f"{self.session}/execute/sync", {"script": body, "args": list(args)})

    def keys(self, text: str) -> None:
        """Press keys, one after another, on whatever has the focus (\\ue004 is Tab, \\ue007 Enter)."""
        actions = [a for key in text for a in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        self._call("POST", f"{self.session}/actions", body)

    def command(self, name: str, **params: Any) -> Any:
        return self._call("POST", f"{self.session}/goog/cdp/execute", {"cmd": name, "params": params})

    def errors(self) -> list[str]:
        found = self._call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [e["message"] for e in found if e["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self.session}/screenshot")))
