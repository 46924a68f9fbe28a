"""The number format in which a model is computed fastest on this processor: measured once, and remembered."""

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
_PROMPT, _ANSWER = 128, 64
"""Tokens of the request whose time decides. Few rows at once are slower in 16 bits where layers are small, many are faster."""
_WIDEST = 8192
"""Outputs of a layer that are computed; a vocabulary has more of them, and costs as much more."""
_REPEATS = 3
_CLEARLY = 0.8
"""bfloat16 must take less than this share of float32's time: in float32 no answer depends on what is cached."""
_log = logging.getLogger("kvproxy")

LayerCounts = Counter[tuple[int, int, bool]]
"""How many linear layers have so many inputs and outputs, and whether they see the last token of a prompt only."""
Measure = Callable[[LayerCounts, torch.dtype], float]


def fastest_dtype(model: Any, folder: Path, measure: Measure | None = None) -> torch.dtype:
    """bfloat16 where it computes the linear layers of a model clearly faster than float32, else float32.

    Args:
        folder: where the choice is kept for the next start, for this model's layers, processor, torch and threads.
        measure: seconds that layers take in a format.
    """
    layers = linear_layers(model)
    said = [
        "packed",
        sorted(layers.items()),
        platform.processor(),
        _processor(),
        torch.__version__,
        torch.get_num_threads(),
    ]
    key = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    known = _read(folder / _FILE)
    if key not in known:
        seconds = {kind: (measure or measure_layers)(layers, kind) for kind in (torch.float32, torch.bfloat16)}
        faster = seconds[torch.bfloat16] < _CLEARLY * seconds[torch.float32]
        known[key] = "bfloat16" if faster else "float32"
        _log.info(
            "the model runs in %s: its layers take %.2f times as long in bfloat16 as in float32 here",
            known[key], seconds[torch.bfloat16] / max(1e-9, seconds[torch.float32]),
        )  # fmt: skip
        _write(folder / _FILE, known)
    return torch.bfloat16 if known[key] == "bfloat16" else torch.float32


def linear_layers(model: Any) -> LayerCounts:
    """The linear layers of a model."""
    last = model.get_output_embeddings()
    return Counter(
        (module.in_features, module.out_features, module is last)
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    )


@torch.inference_mode()
def measure_layers(layers: LayerCounts, kind: torch.dtype) -> float:
    """What the layers take for a short prompt and its answer."""
    total = 0.0
    for (inputs, outputs, last), count in layers.items():
        linear = torch.nn.Linear(inputs, min(outputs, _WIDEST), bias=False, dtype=kind)
        layer = pack_linear(linear)
        prompt = _least(layer, 1 if last else _PROMPT, linear)
        total += count * outputs / linear.out_features * (prompt + _ANSWER * _least(layer, 1, linear))
    return total


def _least(layer: torch.nn.Module, rows: int, like: torch.nn.Linear) -> float:
    given = torch.rand(rows, like.in_features).to(like.weight.dtype)
    return shortest_time(lambda: layer(given))


@torch.inference_mode()
def shortest_time(work: Callable[[], object]) -> float:
    """The shortest time of a few, since others may use the processor too."""
    times = []
    for _ in range(1 + _REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _processor() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _read(path: Path) -> dict[str, str]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in said.items() if isinstance(value, str)} if isinstance(said, dict) else {}


def _write(path: Path, known: dict[str, str]) -> None:
    temporary = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(known))
        temporary.replace(path)
    except OSError as error:
        _log.warning("which number format is fastest is not kept, and is measured at the next start again: %s", error)
