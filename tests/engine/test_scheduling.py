"""Who is served first: priorities, equal shares between tenants, and who gives way when blocks run out."""

import random
from collections import Counter

from kvproxy.engine.scheduler.request_queue import RequestQueue
from kvproxy.generation import Delta, GenerationRequest, SamplingParams
from tests.engine.models import VOCABULARY, random_model, reference
from tests.engine.tiered import Driven, tiny

chance = random.Random(3)


def prompt(length: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(length)]


class Log:
    """Submits requests and notes the order in which answers are complete, and tokens served so far by tenant."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.done: list[str] = []
        self.served: Counter[str] = Counter()
        self.tokens: dict[str, list[int]] = {}

    def submit(
        self, id: str, tokens: list[int], *, tenant: str = "", priority: int = 0, own: int = 0, count: int = 4
    ) -> None:
        params = SamplingParams(max_tokens=count, temperature=0.0)

        def take(delta: Delta) -> None:
            self.tokens.setdefault(id, []).extend(delta.tokens)
            self.served[tenant] += len(delta.tokens)
            if delta.finish_reason:
                self.done.append(id)

        self.driven.engine.add_request(
            GenerationRequest(id, tuple(tokens), params, tenant=tenant, queue_priority=priority, own_priority=own), take
        )


def test_what_is_more_urgent_is_answered_first() -> None:
    log = Log(Driven(tiny(), {}, max_num_seqs=1))
    for number, priority in enumerate((5, 0, -1, 5, 0)):
        log.submit(f"{priority}.{number}", prompt(20), priority=priority)
    log.driven.run()
    assert log.done == ["-1.2", "0.1", "0.4", "5.0", "5.3"]


def test_a_rank_among_ones_own_requests_starves_no_other_tenant() -> None:
    log = Log(Driven(tiny(), {}, max_num_seqs=1))
    for number in range(12):
        log.submit(f"pushy.{number}", prompt(20), tenant="pushy", own=-number)
    log.submit("calm", prompt(20), tenant="calm")
    log.driven.run()
    assert log.done.index("calm") <= 2
    pushy = [id for id in log.done if id != "calm"]
    assert pushy[1:] == sorted(pushy[1:], key=lambda id: -int(id.split(".")[1]))


def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few() -> None:
    log = Log(Driven(tiny(), {}, max_num_seqs=2))
    for number in range(20):
        log.submit(f"many{number}", prompt(30), tenant="many")
    for number in range(3):
        log.submit(f"few{number}", prompt(30), tenant="few")
    log.driven.run()
    assert max(log.done.index(f"few{number}") for number in range(3)) <= 8


def test_tenants_get_equal_shares_of_tokens_whatever_the_size_of_their_requests() -> None:
    log = Log(Driven(tiny(), {}, max_num_seqs=2))
    for number in range(30):
        log.submit(f"large{number}", prompt(60), tenant="large", count=8)
        for part in range(3):
            log.submit(f"small{number}.{part}", prompt(20), tenant="small", count=3)
    while len(log.done) < 50:
        log.driven.step()
    large, small = log.served["large"] / 8 * 76, log.served["small"] / 3 * 26
    assert 0.8 < large / small < 1.25


def test_idling_earns_no_claim() -> None:
    log = Log(Driven(tiny(), {}, max_num_seqs=1))
    for number in range(8):
        log.submit(f"a{number}", prompt(30), tenant="a")
    while len(log.done) < 6:
        log.driven.step()
    for number in range(6):
        log.submit(f"b{number}", prompt(30), tenant="b")
    log.submit("a-late", prompt(30), tenant="a")
    log.driven.run()
    assert log.done.index("a-late") < len(log.done) - 2


def test_the_least_urgent_gives_way_and_every_answer_is_exact() -> None:
    model = random_model("llama")
    log = Log(Driven(tiny(), {}, num_blocks=27, max_num_seqs=4))
    prompts = {f"{number}": prompt(24) for number in range(6)}
    for number, (id, tokens) in enumerate(prompts.items()):
        log.submit(id, tokens, priority=5 - number, count=24)
        for _ in range(3):
            log.driven.step()
    log.driven.run()
    for id, tokens in prompts.items():
        assert log.tokens[id] == reference(model, tokens, 24)
    assert log.done.index("5") < log.done.index("0")


def test_a_long_prompt_does_not_hold_up_the_answers_behind_it() -> None:
    log = Log(Driven(tiny(), {}, max_num_batched_tokens=16, max_num_seqs=4))
    for number in range(3):
        log.submit(f"answer{number}", prompt(8), count=40)
    for _ in range(6):
        log.driven.step()
    log.submit("urgent", prompt(200), priority=-1)
    before = {id: len(tokens) for id, tokens in log.tokens.items()}
    for _ in range(10):
        log.driven.step()
    # Each of them got a token in every step, while the prompt was computed 13 tokens at a time.
    assert {id: len(tokens) - before[id] for id, tokens in log.tokens.items()} == dict.fromkeys(before, 10)
    assert "urgent" not in log.tokens
    log.driven.run()
    assert len(log.tokens["urgent"]) == 4


def test_a_step_never_has_more_sequences_than_it_may() -> None:
    driven = Driven(tiny(), {}, max_num_seqs=4, num_blocks=400)
    most = []
    forward = driven.engine._runner.execute_model
    driven.engine._runner.execute_model = lambda plan: most.append(len(plan)) or forward(plan)  # type: ignore[method-assign,func-returns-value]
    tokens = prompt(30)
    driven.submit("many", tokens, 8, n=11)
    driven.submit("one", prompt(20), 8)
    driven.run()
    assert max(most) == 4
    assert {tuple(driven.tokens[f"many#{index}"]) for index in range(11)} == {
        tuple(reference(random_model("llama"), tokens, 8))
    }


def test_a_line_forgets_who_left() -> None:
    driven = Driven(tiny(), {})
    log = Log(driven)
    for number in range(50):
        log.submit(f"r{number}", prompt(10), tenant=f"t{number % 7}")
        if number % 3 == 0:
            driven.engine.abort(f"r{number}")
    driven.run()
    log.submit("last", prompt(10), tenant="new")
    driven.run()
    line: RequestQueue = driven.engine._scheduler.waiting
    assert len(line) == 0
    assert line._num_live == {}
    assert line._arrival_numbers == {}
    assert len(line._service) == 1
