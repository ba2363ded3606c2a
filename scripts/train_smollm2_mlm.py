"""Make a masked LM out of SmolLM2-135M: bidirectional attention and a LoRA trained by masked next-token prediction.

    python scripts/train_smollm2_mlm.py --corpus ../shared/data/corpus/english.txt.gz --out smollm2-mlm --steps 6000

After LLM2Vec (BehnamGhader et al. 2024): every position sees all others, a share of the tokens is replaced by a learned
mask embedding, and the token at i is read from position i − 1, as the pretrained head is used to. The base stays fixed;
what is trained are rank-16 updates of all projections and that embedding. It can be stopped at any time: the same
command goes on from the last save, and ends with the same weights. A trial of 250 steps took the loss from 7.05 to 3.9
and masked accuracy from 9 % to 32 %, still falling.

Written to --out: adapter.safetensors (fp16), README.md (data, steps, loss, accuracy) and resume.safetensors, to go on
from.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fewnlu.backbones.adapter import MARK, add_lora
from fewnlu.backbones.layers import find_layers
from fewnlu.backbones.loading import load_backbone
from fewnlu.backbones.smollm2_mlm import START_TOKEN
from fewnlu.methods.method import lr_factor

MASK = "mask_embedding"


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpus", type=Path, required=True, help="plain text, or .gz; one passage a line")
    parser.add_argument("--terms", default="see the corpus' own card", help="of the corpus, for the card")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="folder of another causal model (tests); default: the embedded one")
    for name, kind, default in (
        *(("steps", int, 6000), ("batch", int, 8), ("length", int, 128), ("rank", int, 16), ("save_every", int, 250)),
        *(("rate", float, 0.2), ("lr", float, 1e-3), ("warmup", float, 0.03), ("seed", int, 42)),
    ):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    parser.add_argument(
        "--compile", action="store_true", help="compile the layers: a quarter faster, needs a C++ compiler"
    )
    train(parser.parse_args(argv))


def train(args: Any) -> None:
    """Train, saving now and then."""
    backbone = load_backbone(*(("local", None, args.model) if args.model else ("smollm2",)))
    model, tokenizer = backbone.model, backbone.tokenizer
    model.requires_grad_(False)
    add_lora(model, args.rank)
    _quicken(model, args.compile)
    words = model.get_input_embeddings().weight
    trained = {n: p for n, p in model.named_parameters() if MARK in n}
    trained[MASK] = nn.Parameter(words.detach().float().mean(0))
    optimizer = torch.optim.AdamW(trained.values(), lr=args.lr, weight_decay=0.0)
    ids = tokens(args.corpus, tokenizer)
    args.start = int(ids[0])
    held = max(args.length * args.batch, len(ids) // 50)  # the end of the corpus is never trained on
    start, losses = resume(args, trained, optimizer), []
    began = time.time()
    for step in range(start, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * lr_factor(step, args.steps, args.warmup)
        loss, _ = predict(model, trained[MASK], *draw(ids[:-held], args, step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            measured = evaluate(model, trained[MASK], ids[-held:], args)
            save(args, trained, optimizer, step + 1, measured, len(ids), held)
            mean, pace = sum(losses) / len(losses), (time.time() - began) / (step + 1 - start)
            print(
                f"step {step + 1}: loss {mean:.3f}, held out {measured[0]:.3f} / {measured[1]:.1%}, {pace:.2f} s a step"
            )
            losses = []


def tokens(path: Path, tokenizer: Any) -> Tensor:
    """The corpus as one row of token ids, each passage behind the token that texts begin with when they are scored."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = [line.strip() for line in raw.decode().splitlines() if line.strip()]
    found = tokenizer(lines, add_special_tokens=False)["input_ids"]
    start = tokenizer.get_vocab().get(START_TOKEN, tokenizer.eos_token_id)
    return torch.tensor([i for one in found for i in (start, *one)])


def draw(ids: Tensor, args: Any, step: int) -> tuple[Tensor, Tensor]:
    """Windows [batch, length] and where they are masked; seed and step alone decide, so a resumed run repeats.

    A window begins with the start token, as every text does when it is scored.
    """
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(ids) - args.length, (args.batch,), generator=generator)
    masked = torch.rand(args.batch, args.length, generator=generator) < args.rate
    masked[:, 0] = False  # nothing stands before the first token
    masked[:, 1] |= ~masked.any(1)
    windows = ids[starts.unsqueeze(1) + torch.arange(args.length)]
    windows[:, 0] = args.start
    return windows, masked


def predict(model: Any, mask: Tensor, ids: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """(mean cross-entropy, share of right answers) at the masked tokens, each read from the position before it."""
    embeds = model.get_input_embeddings()(ids)
    embeds = torch.where(masked.unsqueeze(-1), mask.to(embeds.dtype), embeds)
    with torch.autocast(embeds.device.type, dtype=torch.bfloat16):
        states = model.base_model(inputs_embeds=embeds, use_cache=False)[0]
        row, place = masked.nonzero(as_tuple=True)
        logits = model.get_output_embeddings()(states[row, place - 1]).float()
    target = ids[row, place]
    return nn.functional.cross_entropy(logits, target), (logits.argmax(-1) == target).float().mean()


def _all_to_all(
    module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, scaling: float, **__: Any
) -> tuple[Tensor, None]:
    """Attention [B, heads, T, D] without a mask, in float32: quicker on a processor than torch's in bf16."""
    with torch.autocast(q.device.type, enabled=False):
        grouped = q.float().reshape(len(q), k.shape[1], -1, q.shape[-1])  # [B, key heads, T * queries a key, D]
        mixed = (grouped @ k.float().transpose(-1, -2) * scaling).softmax(-1) @ v.float()
        return mixed.reshape(q.shape).transpose(1, 2), None


def _quicken(model: Any, compiled: bool) -> None:
    """What changes no result beyond rounding: attention without a mask, fixed weights cast to bf16 once."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("all_to_all", _all_to_all)
    model.config._attn_implementation = "all_to_all"
    for layer in find_layers(model):
        for name, p in layer.named_parameters():
            if MARK not in name and p.ndim == 2:
                p.data = p.data.bfloat16()
        if compiled:
            layer.forward = torch.compile(layer.forward)


@torch.no_grad()
def evaluate(model: Any, mask: Tensor, ids: Tensor, args: Any, batches: int = 20) -> tuple[float, float]:
    """(loss, masked-token accuracy) on held-out text under fixed masks."""
    found = [predict(model, mask, *draw(ids, args, -1 - i)) for i in range(batches)]
    loss, right = (torch.stack(column).mean() for column in zip(*found, strict=True))
    return float(loss), float(right)


def save(
    args: Any, trained: dict[str, Any], optimizer: Any, step: int, measured: tuple[float, float], n: int, held: int
) -> None:
    """Write the adapter, its card and what is needed to go on; each file replaces the last whole."""
    args.out.mkdir(parents=True, exist_ok=True)
    half = {name: p.detach().half().contiguous() for name, p in trained.items()}
    _write(args.out / "adapter.safetensors", half, {"step": str(step), "rank": str(args.rank)})
    state: dict[str, Tensor] = {}
    for name, p in trained.items():
        own = optimizer.state[p]
        state |= {f"p.{name}": p.detach(), f"m.{name}": own["exp_avg"], f"v.{name}": own["exp_avg_sq"]}
    _write(args.out / "resume.safetensors", state, {"step": str(step), "plan": _plan(args)})
    corpus = hashlib.sha256(args.corpus.read_bytes()).hexdigest()
    (args.out / "README.md").write_text(
        f"""# SmolLM2-135M as a masked language model

LoRA (rank {args.rank}, all projections) and a mask embedding for SmolLM2-135M-Instruct with bidirectional attention;
the token at i is read from position i − 1. Base model: Apache-2.0, Hugging Face.

- data: {args.corpus.name} (SHA-256 {corpus[:16]}), {n} tokens, the last {held} held out
- terms of the data: {args.terms}
- training: {step} of {args.steps} steps, {args.batch} x {args.length} tokens, mask rate {args.rate}, lr {args.lr}
- held out: loss {measured[0]:.3f}, masked-token accuracy {measured[1]:.1%}
"""
    )


def _write(path: Path, tensors: dict[str, Tensor], facts: dict[str, str]) -> None:
    temporary = path.with_suffix(".part")
    save_file({n: t.contiguous() for n, t in tensors.items()}, temporary, metadata=facts)
    temporary.replace(path)


def _plan(args: Any) -> str:
    names = ("steps", "batch", "length", "rank", "rate", "lr", "warmup", "seed", "model")
    corpus = hashlib.sha256(args.corpus.read_bytes()).hexdigest()[:16]
    return " ".join(f"{n}={getattr(args, n)}" for n in names) + f" corpus={corpus}"


def resume(args: Any, trained: dict[str, Any], optimizer: Any) -> int:
    """The step to go on from, with weights and optimiser as they were then; 0 where nothing is saved.

    Raises:
        SystemExit: what is saved was trained by another plan.
    """
    path = args.out / "resume.safetensors"
    if not path.exists():
        return 0
    with safe_open(str(path), framework="pt") as file:
        facts = file.metadata()
        if facts["plan"] != _plan(args):
            raise SystemExit(f"{path} was trained with {facts['plan']}; give the same, or another --out")
        step = int(facts["step"])
        for name, p in trained.items():
            with torch.no_grad():
                p.copy_(file.get_tensor(f"p.{name}"))
            moments = {"exp_avg": file.get_tensor(f"m.{name}"), "exp_avg_sq": file.get_tensor(f"v.{name}")}
            optimizer.state[p] = {"step": torch.tensor(float(step)), **moments}
    assert math.isfinite(float(trained[MASK].detach().sum()))
    return step


if __name__ == "__main__":
    main()
