"""Trains the adapter: `python -m training.verifier.train --pairs FILE --out FILE`.

Each worker is a process with one thread and half of every batch: on a CPU this is faster than two threads in one
process, which wait for each other at every matrix.
"""

import argparse
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from kvproxy.index.evaluation.labelled_pairs import Pair, read_pairs
from kvproxy.index.models.minilm.tokenizer import Encoding, load_tokenizer
from kvproxy.index.models.minilm.weights import base_weights, packaged_model, read_tensors
from training.verifier.changes import from_questions, from_templates
from training.verifier.implied import implied, some
from training.verifier.network import CrossEncoder
from training.verifier.splits import hold_out
from training.verifier.tensors import pad, write_tensors

MAX_TOKENS = 128
SORTED_TOGETHER = 50
REPORT_EVERY = 20
WARM_UP = 0.05


@dataclass(frozen=True)
class Plan:
    """What one training does.

    Attributes:
        pairs: the labelled pairs.
        out: the adapter file; written every `save_every` seconds and at the end.
        passes: over the labelled pairs; generated pairs are made anew for each.
        minutes: the learning rate reaches zero by then, whatever is left of the passes.
        batch: pairs a step, over all workers.
        changed, filled: generated pairs a pass, from questions and from templates (see `changes`).
        implied: pairs a pass that follow from labelled ones.
        rate: learning rate of the low-rank factors and the head; norms and biases have 0.3 of it.
        smoothing: labels are moved so far towards the other one.
        start: an adapter to go on from, of the same rank.
    """

    pairs: Path
    out: Path
    passes: int = 2
    minutes: float = 600.0
    batch: int = 64
    workers: int = 2
    rank: int = 32
    changed: int = 8_000
    filled: int = 2_000
    implied: int = 8_000
    rate: float = 1e-3
    smoothing: float = 0.05
    start: Path | None = None
    seed: int = 0
    save_every: float = 180.0


def batches(plan: Plan) -> Iterator[list[tuple[Pair, Encoding]]]:
    """Encoded pairs of similar length, `plan.batch` at a time, the sides in random order."""
    labelled = hold_out(list(read_pairs(plan.pairs))).train
    questions = sorted({text for pair in labelled for text in (pair.a, pair.b)})
    following = implied(labelled)
    tokenizer = load_tokenizer(packaged_model(), MAX_TOKENS)
    rng = random.Random(plan.seed)
    for turn in range(plan.passes):
        made = [*from_questions(questions, plan.changed, turn), *from_templates(plan.filled, turn)]
        pairs = labelled + some(following, plan.implied, turn) + made
        rng.shuffle(pairs)
        span = plan.batch * SORTED_TOGETHER
        for start in range(0, len(pairs), span):
            part = [_either_way(pair, rng) for pair in pairs[start : start + span]]
            coded = [(pair, tokenizer.encode(pair.a, pair.b)) for pair in part]
            ordered = sorted(coded, key=lambda each: len(each[1].ids))
            cut = [ordered[n : n + plan.batch] for n in range(0, len(ordered), plan.batch)]
            rng.shuffle(cut)
            yield from (batch for batch in cut if len(batch) >= plan.workers)


def _either_way(pair: Pair, rng: random.Random) -> Pair:
    return Pair(pair.b, pair.a, pair.same, pair.kind) if rng.random() < 0.5 else pair


def steps(plan: Plan) -> int:
    """Upper bound of the number of batches."""
    labelled = len(hold_out(list(read_pairs(plan.pairs))).train)
    return plan.passes * math.ceil((labelled + plan.implied + 1.5 * plan.changed + 2 * plan.filled) / plan.batch)


def optimizer(model: CrossEncoder, rate: float) -> torch.optim.Optimizer:
    """AdamW with a higher rate for the factors and the head, which start from nothing, than for norms and biases."""
    fast: list[nn.Parameter] = []
    slow: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        fresh = name.endswith((".low", ".high")) or name.startswith(("hidden.", "score."))
        (fast if fresh else slow).append(parameter)
    groups = [{"params": fast, "lr": rate}, {"params": slow, "lr": 0.3 * rate}]
    return torch.optim.AdamW(groups, weight_decay=0.01)


def rate(progress: float) -> float:
    """Factor of the learning rates: up over the first twentieth, then down to zero in a line."""
    return progress / WARM_UP if progress < WARM_UP else max(0.0, (1 - progress) / (1 - WARM_UP))


def average(model: CrossEncoder, also: Sequence[float]) -> list[float]:
    """Set the gradients to their mean over the workers; returns the means of `also`."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([torch.tensor(also, dtype=torch.float32), *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    place = len(also)
    for gradient in gradients:
        gradient.copy_(flat[place : place + gradient.numel()].view_as(gradient))
        place += gradient.numel()
    return flat[: len(also)].tolist()


def logits(model: CrossEncoder, batch: Sequence[tuple[Pair, Encoding]]) -> Tensor:
    """`[len(batch)]`."""
    scores: Tensor = model(*(torch.from_numpy(array) for array in pad([coded for _, coded in batch])))
    return scores


def work(worker: int, plan: Plan) -> None:
    """One worker's training loop."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    dist.init_process_group("gloo", rank=worker, world_size=plan.workers)
    model = CrossEncoder(base_weights(packaged_model()), plan.rank).train()
    if plan.start:
        model.start_from(read_tensors(plan.start)[0])
    tuner = optimizer(model, plan.rate)
    rates = [group["lr"] for group in tuner.param_groups]
    total, started, saved = steps(plan), time.monotonic(), time.monotonic()
    progress, seen, losses, rights = 0.0, 0, 0.0, 0.0
    for step, batch in enumerate(batches(plan), 1):
        mine = batch[worker :: plan.workers]
        wanted = torch.tensor([float(pair.same) for pair, _ in mine])
        target = wanted + (1 - 2 * wanted) * plan.smoothing
        given = logits(model, mine)
        loss = F.binary_cross_entropy_with_logits(given, target)
        tuner.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        right = ((given > 0) == (wanted > 0.5)).float().mean().item()
        elapsed, mean_loss, mean_right = average(model, [time.monotonic() - started, loss.item(), right])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        progress = max(step / total, elapsed / (plan.minutes * 60))
        for group, base in zip(tuner.param_groups, rates, strict=True):
            group["lr"] = base * rate(progress)
        tuner.step()
        seen, losses, rights = seen + len(batch), losses + mean_loss, rights + mean_right
        if worker == 0 and step % REPORT_EVERY == 0:
            report = (
                f"loss {losses / REPORT_EVERY:.4f} accuracy {rights / REPORT_EVERY:.4f} {seen / elapsed:.1f} pairs/s"
            )
            print(f"{progress:.1%} step {step}/{total} {elapsed:.0f} s {report}", flush=True)
            losses = rights = 0.0
        if worker == 0 and time.monotonic() - saved > plan.save_every:
            write_tensors(plan.out, model.tuned(), {"pairs_seen": str(seen)})
            saved = time.monotonic()
        if progress >= 1:
            break
    if worker == 0:
        write_tensors(plan.out, model.tuned(), {"pairs_seen": str(seen), "rank": str(plan.rank)})
    dist.destroy_process_group()


def main() -> None:
    defaults = Plan(Path(), Path())
    parser = argparse.ArgumentParser(description="Train the verifier's adapter on labelled and generated pairs.")
    parser.add_argument("--pairs", type=Path, required=True, help='lines {"a", "b", "same"}, .jsonl or .jsonl.gz')
    parser.add_argument("--out", type=Path, required=True, help="the adapter file to write (.safetensors)")
    for name in (
        "passes",
        "minutes",
        "batch",
        "workers",
        "rank",
        "changed",
        "filled",
        "implied",
        "rate",
        "smoothing",
        "seed",
    ):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--start", type=Path, help="an adapter to go on from")
    plan = Plan(**vars(parser.parse_args()))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    spawn(work, (plan,), nprocs=plan.workers)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
