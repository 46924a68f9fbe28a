"""A pytest plugin that puts kvproxy's scheduler under the names of vLLM's, for vLLM's own tests.

    pytest -p kvproxy_names -p scheduler_names tests/v1/core/test_scheduler.py

Requests, their stop conditions, and the outputs of models are vLLM's. A test that needs a part of vLLM's scheduler that
kvproxy does not have is skipped; the reason names the part. Written against vLLM 0.33.0.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from kvproxy_names import NamedManager, marks_use, not_covered, our_request, require
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import RequestStatus

from kvproxy.engine.scheduler.scheduler import Scheduler
from kvproxy.engine.scheduler.scheduler_output import ChunkedPrefill

# Options that do not change the order of text requests.
IGNORED = {"model", "max_model_len", "skip_tokenizer_init", "disable_chunked_mm_input", "use_v2_model_runner", "dtype"}

ATTRIBUTES = {"kv_cache_manager", "finished_req_ids", "_ours", "_sequences", "_skips_cache"}


class Sequence:
    """The attributes of a sequence that the scheduler uses."""

    lora_id = 0

    def __init__(self, request: Any, skips_cache: bool) -> None:
        require(not request.mm_features, "multimodal inputs in the scheduler")
        require(request.structured_output_request is None, "structured output")
        self.vllm = request
        self.request = SimpleNamespace(queue_priority=request.priority, tenant="", tenant_priority=0)
        self.arrival_time = request.arrival_time
        self.cache_request = our_request(request)
        self.cache_request.skip_read |= skips_cache
        self.num_prompt_tokens = request.num_prompt_tokens
        self.was_scheduled = False

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.cache_request.num_tokens - self.cache_request.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.cache_request.num_tokens - self.num_prompt_tokens

    def mark_scheduled(self, num_cached_tokens: int) -> None:
        self.vllm.num_cached_tokens = num_cached_tokens


class Running(list[Any]):
    """The running requests; vLLM's tests may only read them."""

    def append(self, request: Any) -> NoReturn:
        not_covered("requests that a test puts into the running batch")

    remove = append


class Refused:
    """A result that kvproxy's scheduler does not have."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> NoReturn:
        not_covered(self._part)

    def __contains__(self, key: object) -> NoReturn:
        not_covered(self._part)

    __getitem__ = __iter__ = __len__ = __contains__


class NamedScheduler:
    @marks_use
    def __init__(
        self,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 8192,
        enable_prefix_caching: bool = False,
        num_blocks: int = 10_000,
        block_size: int = 16,
        scheduling_policy: str = "priority",
        **options: Any,
    ) -> None:
        require(options.pop("enable_chunked_prefill", True), "prompts in one chunk")
        require(not options.pop("long_prefill_token_threshold", 0), "a threshold for long prompts")
        for name, value in options.items():
            require(name in IGNORED or not value, f"create_scheduler({name}=)")
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=None)
        config = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        self.kv_cache_manager = NamedManager(
            config, 1 << 20, block_size, block_size, max_num_batched_tokens, log_stats=True
        )
        chunks = ChunkedPrefill(block_size, max_num_batched_tokens, strict=False)
        self._ours = Scheduler(self.kv_cache_manager.ours, max_num_batched_tokens, max_num_seqs, chunks)
        self._skips_cache = not enable_prefix_caching
        self._sequences: dict[str, Sequence] = {}
        self.finished_req_ids: set[str] = set()

    def add_request(self, request: Any) -> None:
        sequence = Sequence(request, self._skips_cache)
        self._sequences[request.request_id] = sequence
        self._ours.add(sequence)

    @property
    def requests(self) -> dict[str, Any]:
        return {id: sequence.vllm for id, sequence in self._sequences.items()}

    @property
    def waiting(self) -> list[Any]:
        return [sequence.vllm for sequence in self._ours.waiting]

    @property
    def running(self) -> Running:
        return Running(sequence.vllm for sequence in self._ours.running)

    def schedule(self, **options: Any) -> Any:
        require(not options, "throttled prompts")
        plan = self._ours.schedule()
        finished, self.finished_req_ids = self.finished_req_ids, set()
        output = SimpleNamespace(
            scheduled_new_reqs=[], num_scheduled_tokens={}, finished_req_ids=finished,
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_reqs=0),
        )  # fmt: skip
        for sequence, span in plan.sequences_and_spans:
            id = sequence.vllm.request_id
            output.num_scheduled_tokens[id] = len(span.tokens)
            if sequence.was_scheduled:
                output.scheduled_cached_reqs.req_ids.append(id)
                output.scheduled_cached_reqs.num_reqs += 1
            else:
                sequence.was_scheduled = True
                output.scheduled_new_reqs.append(SimpleNamespace(req_id=id, block_ids=span.block_tables))
        running = set(self._ours.running)
        for sequence in self._sequences.values():
            sequence.vllm.num_computed_tokens = sequence.cache_request.num_computed_tokens
            sequence.vllm.is_prefill_chunk = sequence.num_uncomputed_tokens > 0
            if sequence in running:
                sequence.vllm.status = RequestStatus.RUNNING
            elif sequence.was_scheduled:
                sequence.vllm.status = RequestStatus.PREEMPTED
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        return output

    def update_from_output(self, scheduled: Any, output: Any) -> Refused:
        for id, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            sequence = self._sequences.get(id)
            if sequence is None or id not in scheduled.num_scheduled_tokens:
                continue
            for token in tokens:
                sequence.vllm.append_output_token_ids(token)
                sequence.cache_request.append(token)
                if check_stop(sequence.vllm, 1 << 20):
                    self.finish_requests(id, sequence.vllm.status)
                    break
        return Refused("outputs of the engine core")

    def finish_requests(self, ids: str | Iterable[str], status: Any) -> None:
        for id in [ids] if isinstance(ids, str) else list(ids):
            sequence = self._sequences.pop(id)
            sequence.vllm.status = status
            self._ours.remove(sequence)
            self.finished_req_ids.add(id)

    def get_num_unfinished_requests(self) -> int:
        return len(self._sequences)

    def has_requests(self) -> bool:
        return bool(self._sequences)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        require(not reset_running_requests, "a reset that preempts running requests")
        return self.kv_cache_manager.reset_prefix_cache()

    def __getattr__(self, name: str) -> NoReturn:
        not_covered(f"Scheduler.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        require(name in ATTRIBUTES, f"Scheduler.{name}")
        super().__setattr__(name, value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name in ("create_scheduler", "create_scheduler_with_priority"):
            if hasattr(module, name):
                setattr(module, name, NamedScheduler)
