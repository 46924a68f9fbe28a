"""Replayed steps of an engine on a device: equal to eager ones, and captured beside other threads."""

import threading
import time
from functools import partial
from typing import Any

import torch

from tests.gpu.check import Check, Figures, Missed, NotHere


def replay_equals_eager(device: torch.device) -> Figures:
    from kvproxy.engine.attention.selector import select_backends
    from kvproxy.engine.scheduler.scheduler_output import TokenSpan
    from kvproxy.engine.worker.cuda_graphs import CapturedSteps, CudaCapture, no_capture
    from kvproxy.engine.worker.kv_pool import KVPool
    from tests.engine.models import load, random_model

    if device.type != "cuda":
        raise NotHere("graphs are CUDA's")
    model = random_model("llama").to(torch.bfloat16)
    loaded = load(model, device)
    pool = KVPool(loaded.shape, 40 * 32 + 1, 16, loaded.dtype, device)
    pool.data.normal_()
    decode = select_backends(device, loaded.dtype, loaded.shape.head_dim).decode

    def forward(step: Any) -> torch.Tensor:
        output = model(input_ids=step.tokens, position_ids=step.positions, use_cache=False, input_batch=step)
        logits: torch.Tensor = output.logits[0]
        return logits

    make = partial(CapturedSteps, forward, pool, loaded.groups, decode, max_rows=40, max_blocks=32)
    captured, plain = make(capture=CudaCapture(device)), make(capture=no_capture)
    equal, worst = 0, 0.0
    chance = torch.Generator().manual_seed(0)
    for rows in (40, 1, 17, 3, 8, 33, 2):
        # No block in two tables: rows that wrote the same slot would do so in any order.
        tables = (torch.randperm(40 * 32, generator=chance) + 1).view(40, 32).tolist()
        tokens = torch.randint(0, 300, (rows,), generator=chance).tolist()
        places = torch.randint(0, 512, (rows,), generator=chance).tolist()
        spans = [
            TokenSpan([token], at, [table[: at // 16 + 1]])
            for token, at, table in zip(tokens, places, tables[:rows], strict=True)
        ]
        right = plain(spans).clone()
        found = captured(spans).clone()
        equal += torch.equal(found, right)
        worst = max(worst, float((found - right).float().norm() / right.float().norm()))
    figures = {"steps": "7", "bitwise equal": str(equal), "worst error": f"{worst:.1e}"}
    if not worst <= 1e-2:
        raise Missed("replayed steps differ", figures)
    return figures


def strict_bfloat16(device: torch.device) -> Figures:
    from kvproxy.engine.worker.cuda_graphs import no_capture
    from tests.engine.driven import Driven, prompts_of
    from tests.engine.models import load, random_model

    loaded = load(random_model("llama").to(torch.bfloat16), device)
    prompts = prompts_of("llama")[0][: 8 if device.type == "cuda" else 3]
    found: dict[str, list[list[int]]] = {}
    for name, graphs in (("replayed", True), ("eager", False)):
        capture = no_capture if device.type == "cpu" and graphs else None
        driven = Driven(loaded, {}, capture=capture, num_blocks=400, batch_invariant=True, cuda_graphs=graphs)
        alone = [driven.answers([prompt], f"cold{number}")[0] for number, prompt in enumerate(prompts)]
        found |= {f"{name}, cold": alone, f"{name}, warm": driven.answers(prompts, "warm")}
    first = found["replayed, cold"]
    wrong = [name for name, answers in found.items() if answers != first]
    if wrong:
        raise Missed(f"answers differ from the replayed, cold ones: {', '.join(wrong)}", {})
    return {"answers": str(len(first)), "the same": ", ".join(found)}


def capture_beside_a_thread(device: torch.device) -> Figures:
    from tests.engine.driven import Driven, prompts_of
    from tests.engine.models import load, random_model

    if device.type != "cuda":
        raise NotHere("graphs are CUDA's")
    loaded = load(random_model("llama"), device)
    over = threading.Event()
    held: list[torch.Tensor] = []

    def allocate() -> None:
        # More than torch has cached, so that each of them asks CUDA.
        while not over.is_set() and len(held) < 300:
            held.append(torch.empty(24 << 20, dtype=torch.uint8, device=device))
            time.sleep(0.005)

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        for _ in range(5):
            driven = Driven(loaded, {}, num_blocks=200)
    finally:
        over.set()
        thread.join()
    driven.submit("a", prompts_of("llama")[0][0])
    driven.run()
    if driven.engine._runner._captured is None:
        raise Missed("nothing was captured", {})
    return {"engines captured": "5", "allocations meanwhile": str(len(held))}


CHECKS = (
    Check("graph replay equals eager", 60, replay_equals_eager),
    Check("strict answers in bfloat16", 60, strict_bfloat16, rehearsed=True),
    Check("capture beside another thread", 40, capture_beside_a_thread),
)
