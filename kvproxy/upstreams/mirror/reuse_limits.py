"""Explains which prefixes a model cannot reuse, because its KV cache groups have large blocks, states, or windows."""

from collections.abc import Sequence

from kvproxy.upstreams.mirror.apply_events import MirroredPool, on_gpu
from kvproxy.upstreams.mirror.prefix_match import reuse_unit

MIN_UNIT = 256
"""Reuse in smaller steps needs no explanation."""


def explain_reuse_limits(pools: Sequence[MirroredPool], hit_unit: int | None = None) -> str | None:
    """Return a sentence on the prefixes that the model of these pools cannot reuse; None if it reuses all but short ones.

    `hit_unit` is the number of tokens of which a reused prefix is a multiple, as the engine reports it.
    """
    gpu = on_gpu(pools)
    unit = hit_unit or (reuse_unit(gpu) if gpu else 0)
    has_states = any(pool.kind == "mamba" for pool in gpu)
    windows = sorted({pool.window for pool in gpu if pool.window})
    if unit < MIN_UNIT and not has_states:
        return None
    parts = [f"a prefix below {unit:,} tokens cannot be reused by this model, a longer one in steps of {unit:,} tokens"]
    if has_states:
        parts.append("only up to a position at which the engine kept the state of its state-space layers")
    if windows:
        tokens = " and ".join(f"{window:,}" for window in windows)
        parts.append(f"only if the last {tokens} tokens before that position are cached for its sliding windows")
    return ", and ".join(parts)
