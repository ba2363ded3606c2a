"""Five constrained draws a row: decode=tree against the Outlines library, on the same rows, model and machine.

    python benchmarks/decoding.py [--threads 1] [--rows 8] [--batch 8] [--skip-rowwise]

Prompts of 100 to 400 tokens of the packaged Dutch rows, the embedded model. Ratios are what to look at. With one thread
times are CPU seconds of this process, which other processes on the machine hardly change; with several they are the
best of three by the clock, for a machine that does nothing else. First 1,000 answers over a vocabulary of 50,000
tokens: seconds and memory until the first step's tokens are known.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from importlib import resources
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
RUNS = 5


def questions(task_name: str, n: int, length: Callable[[str], int]) -> list[Any]:
    """`n` questions of 100 to 400 tokens; short texts are strung together to fill the range."""
    import yaml

    from fewnlu.config import conf_dir
    from fewnlu.prompts.question import Asker, ChoiceWording
    from fewnlu.tasks.choice import choice_from_config, load_choice_rows
    from fewnlu.tasks.task import Row

    task = choice_from_config(yaml.safe_load((conf_dir() / f"task/{task_name}.yaml").read_text(encoding="utf-8")))
    folder = str(resources.files("fewnlu.tasks").joinpath("data/dutch"))
    found = load_choice_rows(task, {"dir": folder}, "test")
    assert found is not None
    asker, name, out = Asker(ChoiceWording(task)), next(iter(task.fields)), []
    rng = random.Random(0)
    for i in range(n):
        row, wanted = found.rows[i], 100 + 300 * i // max(1, n - 1)
        while length(asker.ask(row).prompt) < 0.85 * wanted:
            more = rng.choice(found.rows).fields[name]
            row = Row(row.id, {**row.fields, name: f"{row.fields[name]} {more}"}, row.label, row.id, row.meta)
        out.append(asker.ask(row))
    return out


def seconds(work: Callable[[], Any], threads: int) -> float:
    """CPU seconds on one thread; on several, the best of three by the clock."""
    clock, found = time.process_time if threads == 1 else time.perf_counter, []
    for _ in range(1 if threads == 1 else 3):
        begun = clock()
        work()
        found.append(clock() - begun)
    return min(found)


def measure(name: str, asked: list[Any], backbone: Any, batch: int, rowwise: bool, threads: int) -> None:
    """Print one line: seconds per row of five runs, and how many times faster the tree is."""
    from fewnlu.decoding.outlines import OutlinesDecoder
    from fewnlu.decoding.transformers import TransformersBackend
    from fewnlu.decoding.tree import TreeDecoder

    tree, outlines = TreeDecoder(TransformersBackend(backbone)), OutlinesDecoder(backbone)
    prompts, choices = [q.prompt for q in asked], [q.choices for q in asked]
    seeds = [[RUNS * i + r for r in range(RUNS)] for i in range(len(asked))]
    for own in set(choices):
        outlines.generator(own)  # built beforehand on both sides
    tokens = sorted(tree.lengths(prompts))
    order = sorted(range(len(asked)), key=lambda i: -len(prompts[i]))

    def all_rows(decoder: Any, size: int) -> Callable[[], None]:
        def work() -> None:
            for start in range(0, len(order), size):
                some = order[start : start + size]
                decoder.read([prompts[i] for i in some], [choices[i] for i in some], [seeds[i] for i in some])

        return work

    def whole_tree() -> None:
        tree.prepare(prompts, choices)
        all_rows(tree, batch)()

    all_rows(tree, 1)()  # warm
    fast, slow = (seconds(w, threads) / len(asked) for w in (whole_tree, all_rows(outlines, batch)))
    line = f"{name:<16} {tokens[0]}–{tokens[-1]} tokens   tree {fast:.2f}"
    line += f"   outlines, batch {batch} {slow:.2f} ({slow / fast:.1f} times)"
    if rowwise:
        single = seconds(all_rows(outlines, 1), threads) / len(asked)
        line += f"   outlines, row by row {single:.2f} ({single / fast:.1f} times)"
    print(line, flush=True)


def many_choices() -> None:
    """1,000 answers over 50,000 tokens: seconds and memory until the first step is known."""
    from fewnlu.decoding.constraint import Vocabulary

    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz "
    tokens = {c: None for c in letters}
    while len(tokens) < 50_000:
        tokens["".join(rng.choices(letters, k=rng.randint(2, 7)))] = None
    choices = tuple("".join(rng.choices(letters, k=rng.randint(10, 40))) for _ in range(1000))
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    constraint = Vocabulary({i + 1: t.encode() for i, t in enumerate(tokens)}, 0).constraint(choices)
    n = len(constraint.step(b"").tokens)
    spent, grown = time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"1,000 choices over 50,000 tokens: {spent:.2f} s, {grown / 1024:.0f} MB more, {n} tokens may come first")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--skip-rowwise", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    many_choices()
    import torch

    from fewnlu.backbones.loading import load_backbone
    from fewnlu.decoding.transformers import encode

    torch.set_num_threads(args.threads)
    backbone = load_backbone("smollm2")

    def length(text: str) -> int:
        return len(encode(backbone.tokenizer, text))

    unit = "CPU seconds" if args.threads == 1 else "seconds"
    what = f"{args.rows} rows, SmolLM2-135M, fp32, {args.threads} thread{'s' * (args.threads > 1)}, {sys.platform}"
    print(f"{unit} per row for {RUNS} runs, {what}")
    for name, task in (("label words", "dbrd"), ("single letters", "arc_nl")):
        measure(name, questions(task, args.rows, length), backbone, args.batch, not args.skip_rowwise, args.threads)


if __name__ == "__main__":
    main()
