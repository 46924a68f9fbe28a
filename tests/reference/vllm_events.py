"""The mirror against an installed vLLM's own publisher: `python -m tests.reference.vllm_events`.

Random traces run through vLLM's block cache, vLLM's publisher sends its KV events over real sockets, live or before the mirror
has come, and the mirror must end with vLLM's blocks. Written against vLLM 0.33.0; needs no GPU. Not collected by pytest.
"""

import asyncio
import time
from collections import Counter
from typing import Any

from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.mirror.mirror import Mirror
from tests.ports import free_port
from tests.reference.random_trace import random_trace
from tests.reference.vllm_trace import VLLMTrace

TRACES = range(60, 90)


async def find_child(steps: list[dict[str, Any]], *, late: bool) -> tuple[Counter[Any], Counter[Any]]:
    """What vLLM has cached in the end and what the mirror says, as copies by published hash."""
    events, replays = free_port(), free_port()
    # vLLM binds only where the host is a star.
    publisher = ZmqEventPublisher(0, f"tcp://*:{events}", f"tcp://*:{replays}")
    mirror = Mirror(f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replays}", hasher=BlockHasher(seed="0"), idle=0.5)
    trace = VLLMTrace(steps[0])
    try:
        if not late:
            await mirror.start()
            await asyncio.sleep(0.3)
        for step in steps[1:]:
            trace.apply(step)
            batch = trace.manager.take_events()
            if batch:
                publisher.publish(KVEventBatch(ts=time.time(), events=batch))
            await asyncio.sleep(0)
        if late:
            await mirror.start()
        await asyncio.sleep(2)
        said = Counter(
            {name: block.copies for pool in mirror.state().pools.values() for name, block in pool.blocks.items()}
        )
    finally:
        await mirror.close()
        publisher.shutdown()
    held = (block.block_hash for block in trace.manager.block_pool.blocks)
    return Counter(maybe_convert_block_hash(get_block_hash(name)) for name in held if name is not None), said


async def main() -> None:
    differ = 0
    for seed in TRACES:
        steps = random_trace(seed)
        cached, said = await find_child(steps, late=bool(seed % 2))
        differ += cached != said
        print(
            f"trace {seed}, {'late' if seed % 2 else 'live'}: {len(cached)} names, {'equal' if cached == said else 'DIFFERENT'}"
        )
    print(f"{len(TRACES)} traces, {differ} different")


if __name__ == "__main__":
    asyncio.run(main())
