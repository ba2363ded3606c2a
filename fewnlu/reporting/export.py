"""`report export`: records to pass on: no absolute path, and a manifest that lists every file with its hash."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.protocol.records import FAILURE, META, PREDICTIONS, RESULT, scan, to_json
from fewnlu.reporting.checks import where
from fewnlu.reporting.commands import read
from fewnlu.reporting.layout import count

# A path from the root (POSIX, Windows, UNC, file:) within any text; its last part stays.
_PATH = re.compile(r"(?:file:/+|(?<![\w./:])/|(?<!\w)~[\w-]*/|(?<!\w)[A-Za-z]:[\\/]|\\\\)[^\s\"'<>|,;]*")
MANIFEST = "manifest.json"


def run(args: argparse.Namespace) -> int:
    """Copy what `args.dirs` hold to `args.out`; ConfigError where that is not empty or there is nothing."""
    out = Path(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {args.out}: exists and is not empty; choose a new folder")
    studies = read(args.dirs)
    kept = None
    if args.where:
        studies = where(studies, args.where)
        kept = {Path(r["folder"]).absolute() for s in studies for results in s.runs.values() for r in results}
    files: dict[str, dict[str, Any]] = {}
    runs = failed = 0
    taken: set[str] = set()
    folders: list[tuple[bool, Path]] = []
    for root in args.dirs:
        for found in scan(Path(root).absolute()):
            if found.result is None and (found.failure is None or args.where):
                continue
            if kept is not None and found.folder not in kept:
                continue
            folders.append((found.result is None, found.folder))
    for bad, folder in sorted(folders, key=lambda one: one[0]):  # a run that failed here and is done there is done
        target = "/".join(folder.parts[-3:])
        if target in taken:
            continue
        taken.add(target)
        for name, data in _files(folder, not bad):
            path = out / target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            files[f"{target}/{name}"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        runs += not bad
        failed += bad
    if not files:
        raise ConfigError(f"{', '.join(args.dirs)}: no records to export" + (" with --where" if args.where else ""))
    what = {
        RESULT: "config, seeds, row ids, dev looks and scores of one run",
        PREDICTIONS: "set, row id, gold, prediction and log-scores per label of one run",
        META: "seconds, memory, versions and hardware of one run",
        FAILURE: "why a run failed",
    }
    (out / MANIFEST).write_bytes(to_json({"runs": runs, "failed": failed, "kinds": what, "files": files}))
    what_failed = f" and {count(failed, 'failure')}" if failed else ""
    print(f"{count(runs, 'run')}{what_failed} → {out} ({MANIFEST} lists the files)")
    return 0


def _files(folder: Path, done: bool) -> list[tuple[str, bytes]]:
    if not done:
        return [(FAILURE, to_json(stripped(json.loads((folder / FAILURE).read_bytes()))))]
    meta = stripped(json.loads((folder / META).read_bytes()))
    # The result holds no path by contract; one that got in all the same (a model's name, a warning) is stripped.
    raw = (folder / RESULT).read_bytes()
    result = json.loads(raw)
    clean = stripped(result)
    data = raw if clean == result else to_json(clean)
    if data != raw and isinstance(meta.get("sha256"), dict):
        meta["sha256"][RESULT] = hashlib.sha256(data).hexdigest()
    return [(RESULT, data), (META, to_json(meta)), (PREDICTIONS, (folder / PREDICTIONS).read_bytes())]


def stripped(value: Any) -> Any:
    """The value with every absolute path in its texts cut to its last part, as in ``…/albert``."""
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items()}
    if isinstance(value, list):
        return [stripped(v) for v in value]
    if isinstance(value, str):
        return _PATH.sub(_last, value)
    return value


def _last(match: re.Match[str]) -> str:
    text = match[0]
    parts = [p for p in re.split(r"[\\/]+", text) if p]
    # A lone slash, as in "dev / test" or "1 /2", is no path; nor is what has no second part and no folder mark.
    if not parts or (len(parts) == 1 and not text.startswith(("file:", "~")) and ":" not in text):
        return text
    return "…/" + parts[-1]
