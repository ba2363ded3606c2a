"""W&B against a server on loopback: interrupted and resumed runs are sent once, and a server that falls silent costs a
warning."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.running import ROOT, SMALL, Workplace, results

DIES = """
import os
from fewnlu.methods.pet import Method
real, calls = Method.loss, []
def loss(self, batch):
    calls.append(1)
    if len(calls) == 7:  # in the third update of the second run
        os._exit(9)
    return real(self, batch)
if os.environ.get("DIES"):
    Method.loss = loss
from fewnlu.train import main
main()
"""


OF_RUNS = "k*-r*/wandb/offline-run-*/*.wandb"  # not the study's, which lies beside the sweep's studies


class Server:
    """What `wandb sync` asks of a server, on loopback.

    Attributes:
        runs: the ids that were announced.
        steps: id -> step of each line of history that arrived.
        silent: it takes what is said from now on and answers nothing.
    """

    def __init__(self) -> None:
        self.silent = False
        self.closing = threading.Event()
        self.runs: set[str] = set()
        self.steps: dict[str, list[int]] = defaultdict(list)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if outer.silent:
                    outer.closing.wait()
                    return
                answer = json.dumps(outer.answer(self.path, json.loads(body or b"{}"))).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            run = path.split("/")[-2]
            lines = ((asked.get("files") or {}).get("wandb-history.jsonl") or {}).get("content") or []
            self.steps[run] += [json.loads(line)["_step"] for line in lines]
            return {}
        if asked.get("operationName") == "UpsertBucket":
            name = asked["variables"]["name"]
            self.runs.add(name)
            project = {"id": "p", "name": "fewnlu", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": name, "name": name, "displayName": name, "project": project, "historyLineCount": 0}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if asked.get("operationName") == "CreateRunFiles":
            return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []}}}
        return {"data": {}}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.closing.set()
    made.http.shutdown()
    made.http.server_close()


def test_an_interrupted_and_resumed_run_is_sent_once(place: Workplace, server: Server) -> None:
    pytest.importorskip("wandb")
    (place.folder / "dies.py").write_text(DIES)
    argv = [*place.base()[: -len(SMALL)], *SMALL[:-1], "logger=wandb", "split.k=2", "search=none"]
    argv += ["hp.max_steps=4", "runtime.threads=1"]
    killed = place.python("dies.py", *argv, DIES="1")
    assert killed.returncode == 9 and len(results(place.folder)) == 1, killed.stderr
    assert len(list(place.folder.rglob(OF_RUNS))) == 2  # the killed one's is there
    done = place.python("dies.py", *argv)
    assert done.returncode == 0, done.stderr
    keys = {one["key"] for one in results(place.folder)}
    folders = sorted({p.parent for p in place.folder.rglob(OF_RUNS)})
    assert len(keys) == len(folders) == 2
    sent = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", *map(str, folders)],
        cwd=place.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "WANDB_BASE_URL": f"http://127.0.0.1:{server.http.server_port}"}
        | {"WANDB_API_KEY": "0" * 40, "HOME": str(place.folder), "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert sent.returncode == 0, sent.stderr[-2000:]
    assert server.runs == keys
    for key in keys:  # a line for each update, none twice
        assert server.steps[key] and sorted(set(server.steps[key])) == sorted(server.steps[key])


def test_i116_a_server_that_falls_silent_costs_one_warning(place: Workplace, server: Server) -> None:
    """It takes the first run's name and answers nothing more: that run's end waits its time, the next is offline."""
    pytest.importorskip("wandb")
    real = server.answer

    def answer(path: str, asked: dict[str, Any]) -> dict[str, Any]:
        server.silent = asked.get("operationName") == "UpsertBucket"
        return real(path, asked)

    server.answer = answer  # type: ignore[method-assign]
    done = place.python(
        *("-m", "fewnlu.train", *place.base()[:-1], "logger=wandb", "split.k=2", "search=none", "runtime.threads=1"),
        *("logger.mode=online", "logger.init_timeout=2"),
        WANDB_BASE_URL=f"http://127.0.0.1:{server.http.server_port}",
        WANDB_API_KEY="0" * 40,
        HOME=str(place.folder),
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 done" in done.stdout and done.stderr.count("logging offline") == 1
    assert len(server.runs) == 1
    assert len(list(place.folder.rglob(OF_RUNS))) == 1
