"""Mixtures: what a table of several studies must not compare silently (faults I051, I055, I071)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.protocol.records import META
from fewnlu.reporting.layout import count as count_of
from fewnlu.reporting.names import model_name, task_name
from fewnlu.reporting.studies import Study


def versions_of(result: dict[str, Any], shared: dict[bytes, dict[str, str]] | None = None) -> dict[str, str]:
    """Versions and commit of a run, from its meta.json; empty where there is none.

    Args:
        shared: parsed blocks by their bytes, so that 40,000 equal ones are parsed once.
    """
    try:
        raw = (Path(result["folder"]) / META).read_bytes()
    except OSError:
        return {}
    # meta.json has sorted keys, so "versions" is its last block but for what begins with w to z.
    start = raw.rfind(b'"versions": {')
    block = raw[start + 12 : raw.find(b"}", start) + 1] if start >= 0 else b""
    commit = raw.find(b'"commit": "')
    block_id = block + (raw[commit : raw.find(b"\n", commit)] if commit >= 0 else b"")
    if shared is not None and block_id in shared:
        return shared[block_id]
    try:
        meta = json.loads(raw)
        found = {str(k): str(v) for k, v in (meta.get("versions") or {}).items()}
        if meta.get("commit"):
            found["commit"] = str(meta["commit"])
    except (ValueError, AttributeError):
        found = {}
    if shared is not None:
        shared[block_id] = found
    return found


def mixtures(studies: Sequence[Study]) -> list[str]:
    """Warnings on what differs between studies or runs shown together: data, weights, numerics, versions."""
    return [*_data(studies), *_weights(studies), *_versions(studies)]


def _first(study: Study) -> dict[str, Any] | None:
    return next((results[0] for results in study.runs.values() if results), None)


def _data(studies: Sequence[Study]) -> list[str]:
    out = []
    for which in ("test", "labeled"):
        seen: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for study in studies:
            first = _first(study)
            if first and first["rows"].get(which):
                seen[task_name(study)][first["rows"][which]["sha256"]].append(study.name)
        for task, hashes in seen.items():
            if len(hashes) > 1:
                parts = "; ".join(f"{sha[:8]}: {', '.join(sorted(set(names)))}" for sha, names in hashes.items())
                what = "test rows" if which == "test" else "labelled rows"
                out.append(f"{task}: studies with different {what} are not comparable ({parts})")
    return out


def _weights(studies: Sequence[Study]) -> list[str]:
    weights, numerics = defaultdict(set), set()
    for study in studies:
        first = _first(study)
        if first:
            weights[model_name(study)].add(str(first.get("weights"))[:8])
            numerics |= {r.get("numerics") for results in study.runs.values() for r in results}
    out = [f"model {m}: {len(w)} different weights ({', '.join(sorted(w))})" for m, w in weights.items() if len(w) > 1]
    if len(numerics) > 1:
        out.append(f"runs of code with different numerics ({', '.join(map(str, sorted(numerics, key=str)))})")
    return out


def _versions(studies: Sequence[Study]) -> list[str]:
    shared: dict[bytes, dict[str, str]] = {}
    count: dict[str, Counter[str]] = defaultdict(Counter)
    for study in studies:
        for results in study.runs.values():
            for result in results:
                for name, version in versions_of(result, shared).items():
                    count[name][version] += 1
    mixed = {n: c for n, c in count.items() if len(c) > 1 and n != "commit"}
    out = [
        f"runs made with different versions of {name}: "
        + ", ".join(f"{v} ({count_of(n, 'run')})" for v, n in sorted(c.items()))
        for name, c in sorted(mixed.items())
    ]
    if len(count["commit"]) > 1:
        out.append(f"runs made with {len(count['commit'])} different commits of fewnlu")
    return out


def where(studies: Sequence[Study], condition: str) -> list[Study]:
    """Only the runs made with some versions, such as ``outlines>=1.0,<1.3`` or ``commit==abc123`` (fault I051).

    Raises:
        ConfigError: a condition that is none.
    """
    import re

    match = re.fullmatch(r"\s*([A-Za-z][\w.-]*)\s*([<>=!~].*)", condition)
    if not match:
        raise ConfigError(f"--where {condition!r}: expected a package and versions, such as 'outlines>=1.0,<1.3'")
    name, spec = match[1], match[2].strip()
    if name == "commit":
        wanted = spec.lstrip("=! ")

        def keep(version: str) -> bool:
            return version.startswith(wanted) == (not spec.startswith("!"))
    else:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            specifiers = SpecifierSet(spec)
        except InvalidSpecifier:
            raise ConfigError(
                f"--where {condition!r}: {spec!r} is no range of versions, such as '>=1.0,<1.3'"
            ) from None

        def keep(version: str) -> bool:
            return specifiers.contains(version.split("+")[0], prereleases=True)

    shared: dict[bytes, dict[str, str]] = {}
    out = []
    for study in studies:
        runs = {}
        for h, results in study.runs.items():
            kept = [r for r in results if name in (v := versions_of(r, shared)) and keep(v[name])]
            if kept:
                runs[h] = kept
        if runs:
            out.append(replace(study, runs=runs))
    return out
