"""Time to first token with prefixes from a tier, relative to computing them, and the cost of writing them.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.tiers [--rounds 5] [--lengths 16 128 512 2048] [--folder DIR]

The last 16 tokens of each prompt are new, and the pool is empty. `cold disk` drops the page cache of the chunks before each
read. Redis is measured if redis-server is installed.
"""

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.settings import EngineSettings, TierSettings
from tests.benchmarks.options import read_options
from tests.benchmarks.random_engine import generate, load_random, random_tokens
from tests.benchmarks.timing import interleave, median_ratio
from tests.redis_server import run_redis

SUFFIX = 16


class Source(NamedTuple):
    """An engine with one tier; `cold`: the folder of chunks to drop from the page cache."""

    engine: EngineCore
    cold: Path | None = None

    def first_token(self, prompt: list[int]) -> float:
        """Return the seconds to the first token; the chunks are written afterwards."""
        assert self.engine.manager.reset_prefix_cache()
        if self.cold is not None:
            drop_page_cache(self.cold)
        began = time.perf_counter()
        generate(self.engine, [prompt + random_tokens(SUFFIX)], 1)
        seconds = time.perf_counter() - began
        if self.engine.tiers:
            self.engine.tiers.chain.flush()
        return seconds


def drop_page_cache(folder: Path) -> None:
    for path in folder.rglob("*.chunk"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def make_engine(loaded: LoadedModel, **tiers: Any) -> EngineCore:
    return EngineCore(loaded, EngineSettings(num_blocks=600, max_num_batched_tokens=2048), TierSettings(**tiers))


@contextlib.contextmanager
def sources(loaded: LoadedModel, folder: Path, chunk: int) -> Iterator[dict[str, Source]]:
    """Yield an engine without tiers, and one for each tier."""
    with contextlib.ExitStack() as stack:
        make = partial(make_engine, loaded, chunk_tokens=chunk)
        cold = folder / f"cold{chunk}"
        found = {
            "computed": Source(make_engine(loaded)),
            "host": Source(make(host=4 << 30)),
            "disk": Source(make(disk=folder / str(chunk))),
            "cold disk": Source(make(disk=cold), cold),
        }
        if shutil.which("redis-server"):
            found["Redis"] = Source(make(redis=stack.enter_context(run_redis()).url, redis_timeout=5.0))
        yield found
        for source in found.values():
            source.engine.close()


def show(title: object, seconds: dict[str, list[float]]) -> None:
    """Print medians in milliseconds, with their ratios to `computed`."""
    cells = (
        f"{statistics.median(values) * 1e3:.1f} ({median_ratio(values, seconds['computed']):.3f})"
        for values in seconds.values()
    )
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


def by_length(loaded: LoadedModel, folder: Path, lengths: list[int], rounds: int) -> None:
    with sources(loaded, folder, min(lengths)) as found:
        print(f"\nms (ratio) by prefix tokens, chunks of {min(lengths)} tokens\n| prefix | {' | '.join(found)} |")
        for length in lengths:
            prefix = random_tokens(length)
            for source in found.values():
                source.first_token(prefix)
            works = {name: partial(source.first_token, prefix) for name, source in found.items()}
            show(length, interleave(works, rounds))


def cost_of_writes(loaded: LoadedModel, folder: Path, rounds: int) -> None:
    plain = Source(make_engine(loaded))
    writing = Source(make_engine(loaded, host=4 << 30, disk=folder / "writes", chunk_tokens=256))
    works = {
        name: lambda source=source: source.first_token(random_tokens(1024))
        for name, source in (("computed", plain), ("written", writing))
    }
    print("\nms (ratio) of a new prompt of 1,040 tokens: without tiers, and written to host memory and disk")
    show("", interleave(works, rounds))
    writing.engine.close()


def main() -> None:
    options = read_options(__doc__, rounds=5, lengths=[16, 128, 512, 2048], folder=Path)
    loaded = load_random()
    print(f"{loaded.shape.block_bytes(16, loaded.dtype) / 16 / 1024:.0f} KiB of keys and values per token")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        by_length(loaded, Path(folder), options.lengths, options.rounds)
        cost_of_writes(loaded, Path(folder), options.rounds)


if __name__ == "__main__":
    main()
