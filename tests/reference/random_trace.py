"""Random conformance traces: shared beginnings, adapters, salts, multimodal items, resets, and too much load."""

import random
from typing import Any


def random_trace(seed: int, *, requests: int = 60) -> list[dict[str, Any]]:
    """Operations of a trace, header first. Seeds differ in block size, pool size, vocabulary and pressure."""
    chance = random.Random(seed)
    size = chance.choice([1, 2, 3, 4, 16, 24, 32])
    header = {"op": "meta", "v": 1, "name": f"random-{seed}", "block_size": size}
    header |= {"num_blocks": chance.choice([2, 5, 12, 40, 150]), "vocab": chance.choice([2, 50, 300, 70_000, 2**33])}
    steps: list[dict[str, Any]] = [header | {"max_model_len": 100_000}]
    beginnings = [[chance.getrandbits(64), chance.randrange(1, 5 * size + 2)] for _ in range(4)]
    live: dict[str, list[int]] = {}  # id -> outputs left, prompt length
    begun = 0
    while begun < requests or live:
        if begun < requests and (not live or chance.random() < 0.3):
            begun += 1
            request = _request(chance, f"r{begun}", size, beginnings)
            prompt = sum(length for _, length in request["segs"])
            live[request["id"]] = [request["out"][1], prompt]
            steps += [
                request,
                {"op": "start", "id": request["id"], "n": chance.choice([1, size, 2 * size + 1, prompt])},
            ]
            continue
        if chance.random() < 0.05:
            steps.append({"op": "reset"})
            continue
        id = chance.choice(list(live))
        left, prompt = live[id]
        steps.append({"op": "extend", "id": id, "n": chance.choice([size, prompt])})
        if chance.random() < 0.5:
            continue
        steps.append({"op": "extend", "id": id, "n": prompt})
        if left > 1 and chance.random() < 0.7:
            count = chance.randrange(1, left)
            live[id][0] -= count
            steps.append({"op": "decode", "id": id, "n": count})
        else:
            del live[id]
            steps.append({"op": chance.choice(["finish", "finish", "abort"]), "id": id})
    if chance.random() < 0.3:
        steps.append({"op": "reset"})
    return steps


def _request(chance: random.Random, id: str, size: int, beginnings: list[list[int]]) -> dict[str, Any]:
    segs = [chance.choice(beginnings)] if chance.random() < 0.8 else []
    if not segs or chance.random() < 0.7:
        segs = [*segs, [chance.choice([1, 2, chance.getrandbits(64)]), chance.randrange(1, 4 * size + 2)]]
    request: dict[str, Any] = {
        "op": "req",
        "id": id,
        "segs": segs,
        "out": [chance.getrandbits(64), chance.randrange(1, 3 * size + 2)],
    }
    if chance.random() < 0.3:
        request["salt"] = chance.choice(["a", "b", "Zürich ☃", ""])
    if chance.random() < 0.3:
        request["lora"] = chance.choice([["one", "/one"], ["two", "/two"], ["one", "/elsewhere"], ["same", "same"]])
    if chance.random() < 0.4:
        request["mm"] = _items(chance, sum(length for _, length in segs))
    return request


def _items(chance: random.Random, prompt: int) -> list[list[Any]]:
    """Items one after the other, as placeholders of a prompt lie; some touch, some span several blocks."""
    items, position = [], 0
    while position < prompt and len(items) < 4:
        offset = position + chance.choice([0, 0, 1, chance.randrange(prompt)])
        length = min(chance.choice([1, 2, 7, 40, 600]), prompt - offset)
        if length > 0:
            items.append([chance.choice(["cat", "dog", "鳥" * 9]), offset, length])
        position = offset + max(length, 1)
    return items
