"""Hashing a block against the bare digest of the same bytes, and against encoding with a CBOR library.

python -m tests.benchmarks.hashing
"""

import hashlib
import random
import time

import cbor2
import xxhash

from kvproxy.blocks.block_hash import BlockHasher
from tests.benchmarks.timing import interleave, report

TOKENS, SIZE, VOCABULARY = 4096, 16, 130_000


def main() -> None:
    chance = random.Random(0)
    prompts = [[chance.randrange(VOCABULARY) for _ in range(TOKENS)] for _ in range(8)]
    blocks = len(prompts) * TOKENS // SIZE
    for algorithm, digest in (("sha256_cbor", hashlib.sha256), ("xxhash_cbor", xxhash.xxh3_128)):
        hasher = BlockHasher(algorithm, seed="0")  # type: ignore[arg-type]
        messages = []
        for prompt in prompts:
            parent = hasher.none_hash
            for start in range(0, TOKENS, SIZE):
                messages.append(cbor2.dumps((parent, tuple(prompt[start : start + SIZE]), None), canonical=True))
                parent = digest(messages[-1]).digest()

        def floor(digest=digest, messages=messages) -> float:  # type: ignore[no-untyped-def]
            began = time.perf_counter()
            for message in messages:
                digest(message).digest()
            return (time.perf_counter() - began) / blocks

        def ours(hasher: BlockHasher = hasher) -> float:
            began = time.perf_counter()
            for prompt in prompts:
                hasher.chain(prompt, SIZE)
            return (time.perf_counter() - began) / blocks

        def library(digest=digest, hasher: BlockHasher = hasher) -> float:  # type: ignore[no-untyped-def]
            began = time.perf_counter()
            for prompt in prompts:
                parent = hasher.none_hash
                for start in range(0, TOKENS, SIZE):
                    block = (parent, tuple(prompt[start : start + SIZE]), None)
                    parent = digest(cbor2.dumps(block, canonical=True)).digest()
            return (time.perf_counter() - began) / blocks

        works = {"kvproxy": ours, "bare digest of the same bytes": floor, "CBOR library + digest": library}
        seconds = interleave(works, 21)
        report(f"{algorithm}, one block of {SIZE} tokens", seconds, "bare digest of the same bytes", 1e6, "us")


if __name__ == "__main__":
    main()
