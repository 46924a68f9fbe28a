"""Load from each tier against recomputing: by prompt length, by chunk size, and the first hit after a restart.

python -m tests.benchmarks.tiers [--rounds 5] [--lengths 16,64,256,1024,2048] [--chunks 64,256,1024] [--folder DIR]

Every figure is the time to first token of one prompt whose last 16 tokens are new, pool emptied before each round.
`device` is the disk tier with the operating system's copies of its files dropped before each read. The Redis tier needs
redis-server on the path and is left out without it.
"""

import argparse
import contextlib
import itertools
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import LoadedModel, prepare_model
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings, TierSettings
from tests.benchmarks.models import fifty_million
from tests.benchmarks.timing import interleave
from tests.engine.models import LetterTokenizer
from tests.redis_server import run_redis

SUFFIX = 16
_numbers = itertools.count()
_chance = random.Random(0)


def tokens(count: int) -> list[int]:
    return [_chance.randrange(16_000) for _ in range(count)]


def make(loaded: LoadedModel, **tiers: Any) -> EngineCore:
    return EngineCore(loaded, EngineSettings(num_blocks=600, max_num_batched_tokens=2048), TierSettings(**tiers))


def first_token(engine: EngineCore, prompt: list[int]) -> float:
    """Seconds to one token; whatever is to be saved is put away after the clock stopped."""
    began = time.perf_counter()
    request = GenerationRequest(str(next(_numbers)), tuple(prompt), SamplingParams(max_tokens=1, temperature=0.0))
    engine.add_request(request, lambda delta: None)
    while engine.has_work:
        if engine.is_stalled and engine.tiers:
            engine.tiers.wait(0.01)
        engine.step()
    return time.perf_counter() - began


def emptied(engine: EngineCore, prompt: list[int], folder: Path | None = None) -> float:
    """The same with an empty pool, and with a tail that nobody has seen; the files of a folder come from the device."""
    assert engine.manager.reset_prefix_cache()
    if folder is not None:
        forget_files(folder)
    seconds = first_token(engine, prompt + tokens(SUFFIX))
    if engine.tiers:
        engine.tiers.chain.flush()
    return seconds


def forget_files(folder: Path) -> None:
    """Make the operating system drop what it keeps of a folder's files in memory, once all of it is on the device."""
    for path in folder.rglob("*.chunk"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


@dataclass
class Way:
    """A way to a first token: an engine, and the folder of its chunks where they are to come from the device."""

    engine: EngineCore
    device: Path | None = None

    def first_token(self, prompt: list[int]) -> float:
        return emptied(self.engine, prompt, self.device)


@contextlib.contextmanager
def tiers(loaded: LoadedModel, folder: Path, chunk: int) -> Iterator[dict[str, Way]]:
    """An engine without tiers, and one for each tier alone."""
    with contextlib.ExitStack() as stack:
        device = folder / f"device{chunk}"
        ways = {
            "recompute": Way(make(loaded)),
            "host": Way(make(loaded, host=4 << 30, chunk_tokens=chunk)),
            "disk": Way(make(loaded, disk=folder / str(chunk), chunk_tokens=chunk)),
            "device": Way(make(loaded, disk=device, chunk_tokens=chunk), device),
        }
        if shutil.which("redis-server"):
            url = stack.enter_context(run_redis()).url
            ways["redis"] = Way(make(loaded, redis=url, redis_timeout=5.0, chunk_tokens=chunk))
        yield ways
        for way in ways.values():
            way.engine.close()


def by_length(loaded: LoadedModel, folder: Path, lengths: list[int], rounds: int) -> None:
    chunk = min(lengths)
    print(
        f"\nTime to first token by prefix length, chunks of {chunk} tokens, median of {rounds}: ms (ratio to recomputing)"
    )
    ratios: dict[str, dict[int, float]] = {}
    with tiers(loaded, folder, chunk) as ways:
        print(f"{'prefix':>8}" + "".join(f"{name:>20}" for name in ways))
        for length in lengths:
            prefix = tokens(length)
            for way in ways.values():
                way.first_token(prefix)
            works = {name: partial(way.first_token, prefix) for name, way in ways.items()}
            for name, ratio in _row(str(length), interleave(works, rounds)).items():
                ratios.setdefault(name, {})[length] = ratio
    for name, found in ratios.items():
        if name != "recompute":
            print(f"{name}: loading is faster than computing {_crossover(found)}")


def _crossover(ratios: dict[int, float]) -> str:
    """From where on all ratios are below 1; between two lengths by interpolation."""
    slower = [length for length, ratio in ratios.items() if ratio >= 1]
    if not slower:
        return f"from {min(ratios)} tokens on, the least that was tried"
    last = max(slower)
    if last == max(ratios):
        return "nowhere up to the longest prefix"
    after = min(length for length in ratios if length > last)
    share = (ratios[last] - 1) / (ratios[last] - ratios[after])
    return f"from about {last + share * (after - last):.0f} tokens on"


def by_chunk(loaded: LoadedModel, folder: Path, chunks: list[int], longest: int, rounds: int) -> None:
    """Prompts that part from a saved one anywhere: what large chunks lose there, and what their fewer reads save."""
    saved = tokens(longest)
    lengths = [longest * (2 * number + 1) // (2 * rounds) for number in range(rounds)]
    print(
        f"\nMean of {rounds} prompts that share {lengths[0]} to {lengths[-1]} tokens with a saved one: ms (ratio to recomputing)"
    )
    for number, chunk in enumerate(chunks):
        with tiers(loaded, folder, chunk) as ways:
            if number == 0:
                print(f"{'chunk':>8}" + "".join(f"{name:>20}" for name in ways) + f"{'found':>12}")
            for way in ways.values():
                way.first_token(saved)
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for length in lengths:
                new = saved[:length] + tokens(longest - length)
                for name, way in ways.items():
                    seconds[name].append(way.first_token(new))
            means = {name: [statistics.mean(values)] for name, values in seconds.items()}
            found = statistics.mean(length // chunk * chunk / length for length in lengths)
            _row(str(chunk), means, f"{found:12.1%}")


def _row(title: str, seconds: dict[str, list[float]], more: str = "") -> dict[str, float]:
    """Prints medians with their ratios to recomputing; the ratios."""
    base = seconds["recompute"]
    ratios = {
        name: statistics.median(value / other for value, other in zip(values, base, strict=True))
        for name, values in seconds.items()
    }
    cells = (f"{statistics.median(values) * 1e3:11.1f} ({ratios[name]:5.3f})" for name, values in seconds.items())
    print(f"{title:>8}" + "".join(f"{cell:>20}" for cell in cells) + more, flush=True)
    return ratios


def cost_of_saving(loaded: LoadedModel, folder: Path, rounds: int) -> None:
    """A cold prompt with and without tiers to write it to, the background's share of the machine included."""
    plain, saving = make(loaded), make(loaded, host=4 << 30, disk=folder / "cold", chunk_tokens=256)
    works = {
        "recompute": lambda: emptied(plain, tokens(1024)),
        "saving": lambda: emptied(saving, tokens(1024)),
    }
    print(f"\nA cold prompt of 1,040 tokens, without tiers and written to host and disk, median of {rounds}")
    print(f"{'':>8}" + "".join(f"{name:>20}" for name in works))
    _row("", interleave(works, rounds))
    saving.close()


def restart(loaded: LoadedModel, folder: Path, length: int, rounds: int) -> None:
    """From making the engine (the model is loaded) to the first token of a prompt that an earlier engine saw."""
    prefix = tokens(length)
    first = make(loaded, disk=folder / "restart")
    first_token(first, prefix + tokens(SUFFIX))
    first.close()

    def again(device: Path | None = None, **settings: Any) -> float:
        if device is not None:
            forget_files(device)
        began = time.perf_counter()
        engine = make(loaded, **settings)
        first_token(engine, prefix + tokens(SUFFIX))
        seconds = time.perf_counter() - began
        engine.close()
        return seconds

    chunks = folder / "restart"
    works = {
        "recompute": lambda: again(),
        "disk": lambda: again(disk=chunks),
        "device": lambda: again(chunks, disk=chunks),
    }
    print(f"\nRestart to first token, prefix of {length} tokens: engine made, folder read, weights named, answered")
    print(f"{'':>8}" + "".join(f"{name:>20}" for name in works))
    _row("", interleave(works, rounds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", default="16,32,64,128,256,512,1024,2048")
    parser.add_argument("--chunks", default="64,256,1024")
    parser.add_argument("--length", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=8, help="prompts for the comparison of chunk sizes")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured; by default that of temporary files")
    chosen = parser.parse_args()
    attention.register()
    loaded = prepare_model("random", fifty_million(), LetterTokenizer(), torch.device("cpu"))
    block = loaded.shape.block_bytes(16, loaded.dtype)
    print(f"{torch.get_num_threads()} threads; {block / 16 / 1024:.0f} KiB of keys and values a token")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        by_length(loaded, Path(folder), [int(each) for each in chosen.lengths.split(",")], chosen.rounds)
        by_chunk(loaded, Path(folder), [int(each) for each in chosen.chunks.split(",")], chosen.length, chosen.prompts)
        cost_of_saving(loaded, Path(folder), chosen.rounds)
        restart(loaded, Path(folder), chosen.length, chosen.rounds)


if __name__ == "__main__":
    main()
