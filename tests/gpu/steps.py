"""Steps of a 7B model: replayed and eager, decoding, prompts and both together, and what their time goes to."""

import statistics
from typing import Any

import torch

from tests.gpu import seven
from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.floors import copy_bandwidth, launched, matmul_rate
from tests.gpu.scale import scale_of

PREFILL_GOAL = 0.6
"""Least share of a large product's rate."""


@torch.inference_mode()
def decode_steps(device: torch.device) -> Figures:
    """Milliseconds of a decode step over long contexts, captured for the longest, against eager and against memory's floor."""
    scale = scale_of(device)
    loaded = seven.model(device)
    figures: Figures = {}
    weights = sum(parameter.numel() * 2 for parameter in loaded.model.parameters())
    for rows in scale.rows:
        try:
            runner, spans = seven.runner(device, rows, scale.context, graphs=True)
        except NotHere as reason:
            figures[f"{rows} rows"] = f"not run: {reason}"
            continue
        if not runner.is_captured:
            raise Missed("the model's steps were not captured", figures)
        replay = launched(lambda runner=runner, spans=spans: runner._captured(spans), scale.repeat)  # type: ignore[misc]
        eager = launched(
            lambda runner=runner, spans=spans: runner.run_eager([], spans, [1] * len(spans)),  # type: ignore[misc]
            scale.repeat // 2,
        )
        floor = (weights + rows * scale.context * loaded.shape.block_bytes(1, loaded.dtype)) / copy_bandwidth(device)
        figures[f"{rows} x {scale.context}"] = (
            f"{replay * 1e3:.2f} ms, eager {eager * 1e3:.2f} ms ({replay / eager:.2f}), memory's floor {floor * 1e3:.2f} ms"
            f" ({floor / replay:.2f} of a copy)"
        )
        if scale.judged and replay > eager:
            raise Missed(f"{rows} rows: a replayed step is slower than an eager one", figures)
        del runner
    return figures


def engine_steps(device: torch.device) -> Figures:
    """Milliseconds of a whole step of the engine, planning and drawing included, next to the replayed forward pass alone."""
    scale = scale_of(device)
    length = scale.context // 8
    figures: Figures = {}
    for rows in scale.rows:
        engine = seven.engine(device, rows * (length + 200), max_num_seqs=rows, max_model_len=2 * length + 200)
        for _ in range(rows):
            seven.submit(engine, seven.random_tokens(device, length), 2 * scale.repeat + 8)
        while engine._scheduler.waiting or any(each.num_output_tokens < 2 for each in engine._scheduler.running):
            engine.step()
        whole = launched(engine.step, scale.repeat, warm=1)
        figures[f"{rows} x {length}"] = f"{whole * 1e3:.2f} ms"
        del engine
    return figures


@torch.inference_mode()
def mixed_steps(device: torch.device) -> Figures:
    """Answers and a prompt in one step, against the two apart; and that the answers' logits do not notice."""
    from kvproxy.engine.scheduler.output import TokenSpan

    scale = scale_of(device)
    rows, prompt = scale.rows[-1], scale.context // 16
    runner, spans = seven.runner(device, rows + 1, scale.context // 8, graphs=False)
    *decodes, last = spans
    prefill = TokenSpan(seven.random_tokens(device, min(prompt, last.end)), 0, last.block_tables)
    both = launched(lambda: runner.run_eager([prefill], decodes, [1] * (1 + len(decodes))), scale.repeat)
    alone = launched(lambda: runner.run_eager([], decodes, [1] * len(decodes)), scale.repeat)
    first = launched(lambda: runner.run_eager([prefill], [], [1]), scale.repeat)
    mixed = runner.run_eager([prefill], decodes, [1] * (1 + len(decodes)))[1:]
    apart = runner.run_eager([], decodes, [1] * len(decodes))
    worst = max(
        float((one - other).float().norm() / other.float().norm()) for one, other in zip(mixed, apart, strict=True)
    )
    figures = {
        "answers and tokens": f"{len(decodes)} and {len(prefill.tokens)}",
        "together": f"{both * 1e3:.2f} ms, apart {alone * 1e3:.2f} + {first * 1e3:.2f} ms",
        "worst error": f"{worst:.1e}",
    }
    if not worst <= 3e-2:
        raise Missed("answers differ beside a prompt", figures)
    return figures


def prefill_rate(device: torch.device) -> Figures:
    """Operations a second of a long prompt, against a large product."""
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
        "attention": engine._runner.backends.prefill.name,
    }
    if scale.judged and rate / floor < PREFILL_GOAL:
        raise Missed(f"{rate / floor:.2f} of the product's rate, goal {PREFILL_GOAL}", figures)
    return figures


@torch.inference_mode()
def kernel_times(device: torch.device) -> Figures:
    """What an eager decode step and a prompt spend their time on, by the profiler."""
    from kvproxy.engine.scheduler.output import TokenSpan

    scale = scale_of(device)
    runner, spans = seven.runner(device, scale.rows[1], scale.context // 4, graphs=False)
    prompt = TokenSpan(seven.random_tokens(device, spans[0].end), 0, spans[0].block_tables)
    figures: Figures = {}
    for name, work in (
        (f"decode, {len(spans)} rows", lambda: runner.run_eager([], spans, [1] * len(spans))),
        (f"prompt of {len(prompt.tokens)}", lambda: runner.run_eager([prompt], [], [1])),
    ):
        work()
        figures |= _profile(name, work, device)
    return figures


def _profile(name: str, work: Any, device: torch.device) -> Figures:
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as found:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
    spent = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = sorted(found.key_averages(), key=lambda row: -float(getattr(row, spent)))
    total = sum(float(getattr(row, spent)) for row in rows) or 1.0
    best = ", ".join(f"{row.key[:40]} {float(getattr(row, spent)) / total:.0%} ({row.count})" for row in rows[:6])
    return {name: f"{sum(row.count for row in rows)} launches, {total / 1e3:.2f} ms: {best}"}


CHECKS = (
    Check("decode steps over long contexts, 7B", 100, decode_steps, rehearsed=True),
    Check("steps of the engine, 7B", 60, engine_steps, rehearsed=True),
    Check("mixed steps, 7B", 40, mixed_steps, rehearsed=True),
    Check("prefill against the matmul rate, 7B", 50, prefill_rate, rehearsed=True),
    Check("kernel times, 7B", 40, kernel_times, rehearsed=True),
)
