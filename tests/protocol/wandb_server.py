"""A stand-in for W&B's server on loopback: it takes what a client sends and answers as little as the client needs."""

from __future__ import annotations

import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Context manager; one project in memory.

    Attributes:
        runs: by id: the variables of the run's first upsert, its `summary` as last streamed, and `streams`, how often
            the run was begun.
        files: uploaded content by file name.
        resumed: ids that a client asked for before it began.
    """

    def __enter__(self) -> Server:
        self.runs: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.resumed: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _body(self) -> bytes:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                return gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw

            def _reply(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self._reply({})

            def do_PUT(self) -> None:
                outer.files[self.path.removeprefix("/upload/")] = self._body()
                self._reply({})

            def do_POST(self) -> None:
                raw = self._body()
                try:
                    body = json.loads(raw or b"{}")
                except ValueError:  # telemetry, in another form
                    self._reply({})
                    return
                if self.path == "/graphql":
                    self._reply({"data": outer._answer(body.get("query", ""), body.get("variables") or {})})
                    return
                for name, part in (body.get("files") or {}).items():
                    if name == "wandb-summary.json":
                        run = outer.runs[self.path.split("/")[-2]]
                        run["summary"] = json.loads(part["content"][-1])
                self._reply({})

            def log_message(self, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *args: Any) -> None:  # clients hang up when they have ended
                pass

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(10)

    def _answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        operation = (re.match(r"\s*(?:query|mutation) (\w+)", query) or [""])[1]
        project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}
        if operation == "RunResumeStatus":
            self.resumed.append(variables["name"])
            return {"model": {**project, "bucket": self._bucket(variables["name"])}}
        if operation == "UpsertBucket":
            run = self.runs.setdefault(variables["name"], {"summary": {}, "streams": 0, **variables})
            run["streams"] += variables["groupName"] is not None  # else an update of the same stream
            bucket = {"id": "b", "name": variables["name"], "displayName": run["displayName"], "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": run["streams"] == 1}}
        if operation == "Viewer":
            return {"viewer": {"id": "u", "entity": "e", "username": "e", "flags": "{}", "teams": {"edges": []}}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "ArtifactType":
            return {"project": {"artifact": None}}
        if operation == "CreateArtifact":  # as if it were known already: its content is asked for nowhere
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "a"}}}
            return {"createArtifact": {"artifact": artifact}}
        if operation == "CreateRunFiles":
            files = [{"name": n, "uploadUrl": f"{self.url}/upload/{n}"} for n in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def _bucket(self, name: str) -> dict[str, Any] | None:
        run = self.runs.get(name)
        if run is None:
            return None
        return {
            "id": "b",
            "name": name,
            "summaryMetrics": json.dumps(run["summary"]),
            "displayName": run["displayName"],
            "logLineCount": 0,
            "historyLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": "[]",
            "eventsTail": "[]",
            "config": run["config"],
            "tags": [],
            "notes": None,
            "wandbConfig": None,
        }
