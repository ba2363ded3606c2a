"""A Hugging Face hub on loopback with one data set: what `datasets` asks for, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse


@contextmanager
def hub(repo: str, commit: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve files as revision `commit` of data set `repo` and yield the address for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, body: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(code)
            given = {"Content-Length": str(len(body)), "X-Repo-Commit": commit, **(headers or {})}
            for name, value in given.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            api, raw = f"/api/datasets/{repo}/", f"/datasets/{repo}/resolve/{commit}/"
            if path == f"{api}revision/{commit}":
                listed = [{"rfilename": name} for name in files]
                self.json({"id": repo, "sha": commit, "private": False, "siblings": listed, "tags": []})
            elif path.startswith(f"{api}tree/{commit}"):
                below = path.removeprefix(f"{api}tree/{commit}").strip("/")
                here = [name for name in files if name.rpartition("/")[0] == below]
                found = [{"type": "file", "path": n, "size": len(files[n]), "oid": sha1(files[n])} for n in here]
                folders = {name.partition("/")[0] for name in files if "/" in name} if not below else set()
                self.json(found + [{"type": "directory", "path": n, "oid": "0" * 40} for n in sorted(folders)])
            elif path.startswith(raw) and path.removeprefix(raw) in files:
                content = files[path.removeprefix(raw)]
                self.answer(content, headers={"ETag": f'"{sha1(content)}"'})
            else:
                self.answer(b"", 404, {"X-Error-Code": "EntryNotFound"})

        def json(self, value: Any) -> None:
            self.answer(json.dumps(value).encode(), headers={"Content-Type": "application/json"})

        do_HEAD = do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def card(configs: Sequence[str]) -> bytes:
    """A README whose front matter names each config's files, as converted data sets have it."""
    lines = ["---", "configs:"]
    for name in configs:
        lines += [f"- config_name: {name}", "  data_files:"]
        for split in ("train", "validation"):
            lines += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    return "\n".join([*lines, "---", ""]).encode()


def parquet(rows: Sequence[Mapping[str, Any]], label_names: Sequence[str]) -> bytes:
    """Rows as the hub's Parquet files: class numbers in `label`, their names in the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features: dict[str, Any] = {name: {"dtype": "string", "_type": "Value"} for name in rows[0]}
    features["idx"] = {"dtype": "int32", "_type": "Value"}
    features["label"] = {"names": list(label_names), "_type": "ClassLabel"}
    kinds = {"idx": pa.int32(), "label": pa.int64()}
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in rows[0]}
    schema = json.dumps({"info": {"features": features}})
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata({"huggingface": schema}), buffer)
    return buffer.getvalue()
