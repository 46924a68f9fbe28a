"""Chooses the fastest dtype on this processor: measured once, and stored."""

import hashlib
import json
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvproxy.engine.kernels.packed_linear import pack_linear

_FILE = "dtypes.json"
_PROMPT_TOKENS, _OUTPUT_TOKENS = 128, 64
"""Tokens of the measured request. bfloat16 is faster for many rows, and often slower for few."""
_MAX_OUTPUTS = 8192
"""Outputs of a measured layer. The time of a larger vocabulary is extrapolated."""
_REPEATS = 3
_MAX_RELATIVE_TIME = 0.8
"""bfloat16 must take less than this share of float32's time. In float32, answers do not depend on cached content."""
_log = logging.getLogger("kvproxy")

LayerCounts = Counter[tuple[int, int, bool]]
"""Number of linear layers by inputs, outputs, and whether the layer computes only the last token of a prompt."""
Measure = Callable[[LayerCounts, torch.dtype], float]


def fastest_dtype(model: Any, folder: Path, measure: Measure | None = None) -> torch.dtype:
    """Return bfloat16 if a model's linear layers are clearly faster than in float32.

    Args:
        model: a transformers model.
        folder: stores the choice for the model's layers, processor, torch version, and threads.
        measure: returns the seconds of layers in a dtype.
    """
    layers = linear_layers(model)
    environment = [
        "packed",
        sorted(layers.items()),
        platform.processor(),
        _processor_name(),
        torch.__version__,
        torch.get_num_threads(),
    ]
    key = hashlib.sha256(json.dumps(environment).encode()).hexdigest()[:16]
    choices = _read(folder / _FILE)
    if key not in choices:
        seconds = {dtype: (measure or measure_layers)(layers, dtype) for dtype in (torch.float32, torch.bfloat16)}
        faster = seconds[torch.bfloat16] < _MAX_RELATIVE_TIME * seconds[torch.float32]
        choices[key] = "bfloat16" if faster else "float32"
        _log.info(
            "the model runs in %s: bfloat16 takes %.2f times as long as float32 on this processor",
            choices[key], seconds[torch.bfloat16] / max(1e-9, seconds[torch.float32]),
        )  # fmt: skip
        _write(folder / _FILE, choices)
    return torch.bfloat16 if choices[key] == "bfloat16" else torch.float32


def linear_layers(model: Any) -> LayerCounts:
    """Count the linear layers of a model."""
    last = model.get_output_embeddings()
    return Counter(
        (module.in_features, module.out_features, module is last)
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    )


@torch.inference_mode()
def measure_layers(layers: LayerCounts, dtype: torch.dtype) -> float:
    """Return the seconds of the layers for a short prompt and its output."""
    total = 0.0
    for (inputs, outputs, last), count in layers.items():
        linear = torch.nn.Linear(inputs, min(outputs, _MAX_OUTPUTS), bias=False, dtype=dtype)
        layer = pack_linear(linear)
        prompt = _layer_time(layer, 1 if last else _PROMPT_TOKENS, linear)
        total += count * outputs / linear.out_features * (prompt + _OUTPUT_TOKENS * _layer_time(layer, 1, linear))
    return total


def _layer_time(layer: torch.nn.Module, rows: int, like: torch.nn.Linear) -> float:
    x = torch.rand(rows, like.in_features).to(like.weight.dtype)
    return shortest_time(lambda: layer(x))


@torch.inference_mode()
def shortest_time(work: Callable[[], object]) -> float:
    """Return the shortest of a few runs, because other programs share the processor."""
    times = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _read(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in stored.items() if isinstance(value, str)} if isinstance(stored, dict) else {}


def _write(path: Path, choices: dict[str, str]) -> None:
    temporary = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(choices))
        temporary.replace(path)
    except OSError as error:
        _log.warning("the fastest dtype was not stored and will be measured again at the next start: %s", error)
