"""Time to the first token behind a shared prefix: cold, warm, and of the suffix alone."""

import statistics

import torch

from tests.gpu import seven
from tests.gpu.check import Check, Figures, Missed
from tests.gpu.scale import scale_of

GOAL = 1.3
"""Most that a warm first token may take, next to that of its suffix alone."""


def first_token(device: torch.device) -> Figures:
    scale = scale_of(device)
    shared = seven.random_tokens(device, scale.context)
    engine = seven.engine(device, 12 * scale.context)

    def took(prompt: list[int]) -> float:
        return seven.answer(engine, prompt)[1]

    took(shared + seven.random_tokens(device, 2 * scale.suffixes[0]))
    took(seven.random_tokens(device, 2 * scale.suffixes[0]))
    figures: Figures = {}
    missed = []
    for suffix in scale.suffixes:
        cold = statistics.median(took(seven.random_tokens(device, scale.context + suffix)) for _ in range(2))
        took(shared + seven.random_tokens(device, suffix))
        warm, alone = [], []
        for _ in range(scale.repeat):
            warm.append(took(shared + seven.random_tokens(device, suffix)))
            alone.append(took(seven.random_tokens(device, suffix)))
        ratio = statistics.median(one / other for one, other in zip(warm, alone, strict=True))
        figures[f"suffix {suffix}"] = (
            f"warm {statistics.median(warm) * 1e3:.1f} ms, alone {statistics.median(alone) * 1e3:.1f} ms"
            f" ({ratio:.2f}), cold {cold * 1e3:.0f} ms"
        )
        if scale.judged and ratio > GOAL:
            missed.append(f"suffix {suffix}: {ratio:.2f} times the suffix alone, goal {GOAL}")
    if missed:
        raise Missed("; ".join(missed), figures)
    return figures


CHECKS = (Check("first token behind a shared prefix, 7B", 80, first_token, rehearsed=True),)
