"""vLLM's own block cache, where vLLM is installed, doing what the block cache benchmark asks of ours."""

import time
from collections.abc import Callable, Sequence


def vllm_run() -> Callable[[Sequence[list[int]], int, int], tuple[float, float]] | None:
    """A function of prompts, blocks and block size -> seconds of hashing and of the rest; None without vLLM."""
    try:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request
    except ImportError:
        return None
    from tests.reference.vllm_trace import make_manager

    init_none_hash(sha256_cbor)

    def run(prompts: Sequence[list[int]], num_blocks: int, block_size: int) -> tuple[float, float]:
        manager = make_manager(num_blocks, block_size, 1_000_000)
        hasher = get_request_block_hasher(block_size, sha256_cbor)
        sampling = SamplingParams(max_tokens=1)
        hashing = rest = 0.0
        for number, prompt in enumerate(prompts):
            # vLLM hashes in the constructor of its request; the constructor's own share is measured apart.
            began = time.perf_counter()
            request = Request(str(number), prompt, sampling, None)
            made = time.perf_counter()
            request.block_hashes = hasher(request)
            hashed = time.perf_counter()
            blocks, found, _ = manager.get_computed_blocks(request)
            assert manager.allocate_slots(request, len(prompt) - found, found, blocks) is not None
            request.num_computed_tokens = len(prompt)
            manager.free(request)
            hashing += hashed - made
            rest += time.perf_counter() - hashed + (made - began)
        return hashing, rest

    return run
