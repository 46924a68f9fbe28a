"""The engine on a device: its answers, its graphs, its tiers."""

import tempfile

import torch

from tests.gpu.check import Check, Figures, Missed

_FAMILIES = ("llama", "qwen3", "mistral", "gpt-neox", "phi")


def tokens_equal_generate(device: torch.device) -> Figures:
    return {family: _answers_of(family, device) for family in _FAMILIES}


def _answers_of(family: str, device: torch.device) -> str:
    from tests.engine.driven import Driven, prompts_of
    from tests.engine.models import load, random_model, reference

    model = random_model(family).to(device)
    prompts, _ = prompts_of("llama")
    expected = [reference(model, prompt, 12) for prompt in prompts]
    loaded = load(model, device)
    for blocks, guesses in ((400, 0), (40, 0), (400, 3)):
        driven = Driven(loaded, {}, num_blocks=blocks, num_speculative_tokens=guesses)
        for turn in ("cold", "warm"):
            answers = driven.answers(prompts, turn)
            if answers != expected:
                wrong = sum(answer != right for answer, right in zip(answers, expected, strict=True))
                raise Missed(
                    f"{family}, {turn}, {blocks} blocks, {guesses} guesses: {wrong} of {len(prompts)} differ", {}
                )
        runner = driven.engine._runner
        if guesses and device.type == "cuda" and not runner._captured:
            raise Missed(f"{family}: steps with guesses were not captured", {})
    return f"{len(prompts)} answers, {type(runner.backends.decode).__name__}, {'graphs' if runner._captured else 'no graphs'}"


def bfloat16_logits(device: torch.device) -> Figures:
    from kvproxy.engine.attention.paged_attention import build_input_batch
    from kvproxy.engine.attention.selector import select_backends
    from kvproxy.engine.scheduler.scheduler_output import TokenSpan
    from kvproxy.engine.worker.kv_pool import KVPool
    from tests.engine.models import load, random_model

    tokens = torch.randint(0, 300, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    exact = random_model("llama").to(device)(torch.tensor([tokens], device=device)).logits[0, -1]
    model = random_model("llama").to(torch.bfloat16)
    plain = model.to(device)(torch.tensor([tokens], device=device)).logits[0, -1]
    loaded = load(model, device)
    pool = KVPool(loaded.shape, 40, 16, loaded.dtype, device)
    backends = select_backends(device, loaded.dtype, loaded.shape.head_dim)
    table = list(range(1, 30))
    for start, end in ((0, 128), (128, 300), (300, 399), (399, 400)):
        span = TokenSpan(tokens[start:end], start, [table])
        step = build_input_batch(pool, loaded.groups, *(([], [span]) if end - start == 1 else ([span], [])), backends)
        output = model(input_ids=step.tokens, position_ids=step.positions, use_cache=False, input_batch=step)
    ours, theirs = (float((logits.float() - exact).norm() / exact.norm()) for logits in (output.logits[0, -1], plain))
    figures = {
        "prefill": type(backends.prefill).__name__,
        "decode": type(backends.decode).__name__,
        "error": f"{ours:.1e}",
        "transformers' own": f"{theirs:.1e}",
    }
    if not ours <= 2 * theirs + 1e-3:
        raise Missed("further from float32 than transformers' own bfloat16", figures)
    return figures


def draws_equal_the_cpus(device: torch.device) -> Figures:
    from kvproxy.apis.codecs.generation import SamplingParams
    from kvproxy.engine.sampler import UniformStream, sample

    logits = torch.randn(400, 32_000, generator=torch.Generator().manual_seed(0)) * 3
    params = [
        SamplingParams(
            seed=row, temperature=(0.0, 0.7, 1.0)[row % 3], top_k=(0, 50)[row % 2], top_p=(1.0, 0.9)[row % 5 > 2]
        )
        for row in range(len(logits))
    ]
    cpu, ours = (
        [each.token for each in sample(place, params, [UniformStream(each, 0).peek(1)[0] for each in params])]
        for place in (logits, logits.to(device))
    )
    same = sum(one == other for one, other in zip(cpu, ours, strict=True))
    figures = {"draws": str(len(cpu)), "same": str(same)}
    # A random number can fall between two ways of rounding.
    if same < len(cpu) - 2:
        raise Missed("draws differ", figures)
    return figures


def tiers_round_trip(device: torch.device) -> Figures:
    from tests.engine.driven import Driven, prompts_of
    from tests.engine.models import load, random_model, reference

    model = random_model("llama").to(device)
    prompts, _ = prompts_of("llama")
    expected = [reference(model, prompt, 12) for prompt in prompts]
    loaded = load(model, device)
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, tiers in (("host", {"host": 1 << 28}), ("disk", {"disk": folder})):
            driven = Driven(loaded, tiers)
            for turn in ("cold", "reloaded"):
                answers = [driven.answers([prompt], f"{turn}{number}")[0] for number, prompt in enumerate(prompts)]
                driven.settle()
                driven.forget_pool()
                if answers != expected:
                    raise Missed(f"{name}, {turn}: answers differ", found)
            found[name] = f"{driven.hits()[name]} chunks loaded"
            driven.engine.close()
            if not driven.hits()[name]:
                raise Missed(f"nothing was loaded from {name}", found)
    return found


CHECKS = (
    Check("tokens equal model.generate, float32", 90, tokens_equal_generate, rehearsed=True),
    Check("bfloat16 logits near float32's", 40, bfloat16_logits, rehearsed=True),
    Check("draws equal the CPU's", 30, draws_equal_the_cpus, rehearsed=True),
    Check("tiers round trip", 60, tiers_round_trip, rehearsed=True),
)
