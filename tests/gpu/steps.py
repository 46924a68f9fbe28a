"""Steps and requests of a 7B model: replayed and eager decoding, prompts, and the first token behind a shared prefix."""

import statistics

import torch

from tests.gpu import seven
from tests.gpu.check import Check, Figures, Missed
from tests.gpu.scale import copy_bandwidth, launched, matmul_rate, scale_of

PREFILL_GOAL = 0.6
"""Least share of a large product's rate."""


@torch.inference_mode()
def decode_steps(device: torch.device) -> Figures:
    scale = scale_of(device)
    loaded = seven.model(device)
    figures: Figures = {}
    weights = sum(parameter.numel() * 2 for parameter in loaded.model.parameters())
    for rows in scale.rows:
        context = min(scale.context, scale.pool // rows)
        runner, spans = seven.runner(device, rows, context, graphs=True)
        if runner._captured is None:
            raise Missed("the model's steps were not captured", figures)
        replay = launched(lambda runner=runner, spans=spans: runner._captured(spans), scale.repeat)  # type: ignore[misc]
        eager = launched(
            lambda runner=runner, spans=spans: runner.run_eager([], spans, [1] * len(spans)),  # type: ignore[misc]
            scale.repeat // 2,
        )
        floor = (weights + rows * context * loaded.shape.block_bytes(1, loaded.dtype)) / copy_bandwidth(device)
        figures[f"{rows} x {context}"] = (
            f"{replay * 1e3:.2f} ms, eager {eager * 1e3:.2f} ms ({replay / eager:.2f}), memory's floor {floor * 1e3:.2f} ms"
            f" ({floor / replay:.2f} of a copy)"
        )
        if scale.judged and replay > eager:
            raise Missed(f"{rows} rows: a replayed step is slower than an eager one", figures)
        del runner
    return figures


def prefill_rate(device: torch.device) -> Figures:
    scale, shape, count = scale_of(device), scale_of(device).shape, scale_of(device).context
    engine = seven.engine(device, 7 * count)
    took = statistics.median(
        [seven.answer(engine, seven.random_tokens(device, count))[1] for _ in range(1 + scale.repeat // 4)][1:] or [1.0]
    )
    model = seven.model(device).model
    weights = sum(parameter.numel() for name, parameter in model.named_parameters() if "layers" in name)
    work = 2 * weights * count + 4 * shape.layers * shape.hidden * count**2 / 2
    rate, floor = work / took, matmul_rate(device)
    figures = {
        "seconds": f"{took:.3f}",
        "rate": f"{rate / 1e12:.2f} TFLOP/s, {rate / floor:.2f} of the product's",
        "attention": type(engine._runner.backends.prefill).__name__,
    }
    if scale.judged and rate / floor < PREFILL_GOAL:
        raise Missed(f"{rate / floor:.2f} of the product's rate, goal {PREFILL_GOAL}", figures)
    return figures


_FIRST_TOKEN_GOAL = 1.3
"""Maximum time of a first token after a cached prefix, divided by that after the suffix alone."""


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
        if scale.judged and ratio > _FIRST_TOKEN_GOAL:
            missed.append(f"suffix {suffix}: {ratio:.2f} times the suffix alone, goal {_FIRST_TOKEN_GOAL}")
    if missed:
        raise Missed("; ".join(missed), figures)
    return figures


CHECKS = (
    Check("decode steps over long contexts, 7B", 100, decode_steps, rehearsed=True),
    Check("prefill against the matmul rate, 7B", 50, prefill_rate, rehearsed=True),
    Check("first token behind a shared prefix, 7B", 80, first_token, rehearsed=True),
)
