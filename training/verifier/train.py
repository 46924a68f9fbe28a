"""Trains the verifier's adapter: `python -m training.verifier.train --pairs FILE --out FILE`."""

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from kvproxy.index.evaluation.labelled_pairs import LabelledPair, read_pairs
from kvproxy.index.models.minilm.weights import base_weights, load_tokenizer, packaged_model, read_tensors
from training.verifier.generated_pairs import pairs_from_questions, pairs_from_templates
from training.verifier.network import CrossEncoder, pad, write_tensors
from training.verifier.pair_clusters import hold_out, implied_pairs

MAX_TOKENS = 128
SORTED_BATCHES = 50
REPORT_STEPS = 20
WARM_UP = 0.05
SAVE_SECONDS = 180.0


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training, which writes the adapter also every three minutes.

    Attributes:
        passes: over the labelled pairs. Each pass has new generated pairs.
        minutes: the learning rate falls to zero by then, even in the middle of a pass.
        batch: pairs per step.
        changed, filled, implied: pairs per pass: hard negatives from questions and from templates, and pairs that labels imply.
        rate: learning rate of the low-rank factors and the head; norms and biases have 0.3 of it.
        smoothing: probability of the other label.
        device: name of torch's device, such as `cuda`.
    """

    pairs: Path
    out: Path
    passes: int = 2
    minutes: float = 600.0
    batch: int = 64
    rank: int = 32
    changed: int = 8_000
    filled: int = 2_000
    implied: int = 8_000
    rate: float = 1e-3
    smoothing: float = 0.05
    seed: int = 0
    start: Path | None = None
    device: str = "cpu"


def batches(options: TrainingOptions) -> Iterator[list[tuple[LabelledPair, object]]]:
    """Yield batches of pairs with similar lengths, and their encodings."""
    labelled = hold_out(list(read_pairs(options.pairs))).train
    questions = sorted({text for pair in labelled for text in (pair.a, pair.b)})
    implied = implied_pairs(labelled)
    tokenizer = load_tokenizer(packaged_model(), MAX_TOKENS)
    rng = random.Random(options.seed)
    for number in range(options.passes):
        pairs = labelled + rng.sample(implied, min(options.implied, len(implied)))
        pairs += pairs_from_questions(questions, options.changed, number)
        pairs += pairs_from_templates(options.filled, number)
        rng.shuffle(pairs)
        span = options.batch * SORTED_BATCHES
        for start in range(0, len(pairs), span):
            part = [_in_random_order(pair, rng) for pair in pairs[start : start + span]]
            encoded = zip(part, tokenizer.encode_batch([(pair.a, pair.b) for pair in part]), strict=True)
            ordered = sorted(encoded, key=lambda each: len(each[1].ids))
            found = [ordered[n : n + options.batch] for n in range(0, len(ordered), options.batch)]
            rng.shuffle(found)
            yield from found


def _in_random_order(pair: LabelledPair, rng: random.Random) -> LabelledPair:
    return LabelledPair(pair.b, pair.a, pair.same) if rng.random() < 0.5 else pair


def max_steps(options: TrainingOptions) -> int:
    labelled = len(hold_out(list(read_pairs(options.pairs))).train)
    generated = options.implied + 1.5 * options.changed + 2 * options.filled
    return options.passes * math.ceil((labelled + generated) / options.batch)


def make_optimizer(model: CrossEncoder, rate: float) -> torch.optim.Optimizer:
    new: list[nn.Parameter] = []
    pretrained: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_new = name.endswith((".low", ".high")) or name.startswith(("hidden.", "score."))
        (new if is_new else pretrained).append(parameter)
    groups = [{"params": new, "lr": rate}, {"params": pretrained, "lr": 0.3 * rate}]
    return torch.optim.AdamW(groups, weight_decay=0.01)


def learning_rate_factor(progress: float) -> float:
    return progress / WARM_UP if progress < WARM_UP else max(0.0, (1 - progress) / (1 - WARM_UP))


def train(options: TrainingOptions) -> None:
    torch.manual_seed(options.seed)
    model = CrossEncoder(base_weights(packaged_model()), options.rank).train()
    if options.start:
        model.load_adapter(read_tensors(options.start)[0])
    model.to(options.device)
    optimizer = make_optimizer(model, options.rate)
    rates = [group["lr"] for group in optimizer.param_groups]
    total, started, saved = max_steps(options), time.monotonic(), time.monotonic()
    progress, seen, losses, rights = 0.0, 0, 0.0, 0.0
    for step, batch in enumerate(batches(options), 1):
        labels = torch.tensor([float(pair.same) for pair, _ in batch], device=options.device)
        smoothed = labels + (1 - 2 * labels) * options.smoothing
        inputs = pad([encoded for _, encoded in batch])
        logits = model(*(torch.from_numpy(part).to(options.device) for part in inputs))
        loss = F.binary_cross_entropy_with_logits(logits, smoothed)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        elapsed = time.monotonic() - started
        progress = max(step / total, elapsed / (options.minutes * 60))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * learning_rate_factor(progress)
        optimizer.step()
        seen, losses = seen + len(batch), losses + loss.item()
        rights += ((logits > 0) == (labels > 0.5)).float().mean().item()
        if step % REPORT_STEPS == 0:
            means = f"loss {losses / REPORT_STEPS:.4f} accuracy {rights / REPORT_STEPS:.4f}"
            print(
                f"{progress:.1%} step {step}/{total} {elapsed:.0f} s {means} {seen / elapsed:.1f} pairs/s", flush=True
            )
            losses = rights = 0.0
        if time.monotonic() - saved > SAVE_SECONDS:
            write_tensors(options.out, model.adapter(), {"pairs_seen": str(seen)})
            saved = time.monotonic()
        if progress >= 1:
            break
    write_tensors(options.out, model.adapter(), {"pairs_seen": str(seen), "rank": str(options.rank)})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the verifier's adapter on labelled and generated pairs.")
    parser.add_argument("--pairs", type=Path, required=True, help='lines {"a", "b", "same"}, .jsonl or .jsonl.gz')
    parser.add_argument("--out", type=Path, required=True, help="the adapter file to write (.safetensors)")
    for option in fields(TrainingOptions):
        if isinstance(option.default, int | float | str):
            parser.add_argument(f"--{option.name}", type=type(option.default), default=option.default)
    parser.add_argument("--start", type=Path, help="an adapter to continue from")
    train(TrainingOptions(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
