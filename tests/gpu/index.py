"""The index of questions on a GPU, by the calls that the product makes."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.scale import scale_of

DIM = 384


def neighbours(device: torch.device) -> Figures:
    try:
        import faiss
    except ModuleNotFoundError:
        raise NotHere("faiss is not installed") from None
    from kvproxy.index.search.vector_index import VectorIndex

    if device.type == "cuda" and not getattr(faiss, "get_num_gpus", lambda: 0)():
        raise NotHere("this faiss has no GPU support: install kvproxy[gpu]")
    count = scale_of(device).vectors
    vectors = np.random.default_rng(0).standard_normal((count + 2000, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    numbers = np.arange(1, len(vectors) + 1)
    index = VectorIndex(DIM, flat_limit=count // 2 if device.type == "cuda" else 2 * count)
    began = time.perf_counter()
    index.rebuild(
        lambda after: (numbers[after : min(after + 20_000, count)], vectors[after : min(after + 20_000, count)])
    )
    built = time.perf_counter() - began
    began = time.perf_counter()
    index.add(numbers[count:], vectors[count:])
    added = time.perf_counter() - began
    picked = np.random.default_rng(1).integers(0, len(vectors), 200)
    noise = np.random.default_rng(2).standard_normal((200, DIM), dtype=np.float32) * 0.02
    queries = vectors[picked] + noise
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    expected = np.argmax(queries @ vectors.T, axis=1) + 1
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda query: index.search(query, 3)[0][0], queries))
    each = (time.perf_counter() - began) / len(queries)
    same = float((np.array(found) == expected).mean())
    figures = {
        "vectors": f"{len(index):,}, on the {'GPU' if index.on_gpu else 'CPU'}",
        "built": f"{built:.1f} s, 2,000 more in {added:.2f} s",
        "a search": f"{each * 1e3:.2f} ms with four threads",
        "same nearest": f"{same:.3f}",
    }
    if device.type == "cuda" and not index.on_gpu:
        raise Missed("the index is not on the GPU", figures)
    if same < 1.0:
        raise Missed("nearest neighbours differ", figures)
    return figures


CHECKS = (Check("the index of questions", 60, neighbours, rehearsed=True),)
