"""Each store of data that clients or upstreams send has a bound, which docs/limits.md states."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+? \| `([\w.]+):(\w+)` \|$", (ROOT / "docs/limits.md").read_text(), re.M)
_PACKAGES = (
    *("kvproxy/flow", "kvproxy/journal", "kvproxy/upstreams", "kvproxy/http", "index/store"),
    *("kvproxy/apis", "kvproxy/backends", "kvproxy/clients", "kvproxy/providers", "kvproxy/tiers", "kvproxy/engine"),
)
_CONTAINERS = {"dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter", "Queue"}

# Module: the containers in attributes of its objects. Each holds a bounded number of items for a reason that the line names.
BOUNDED = """
# A constant in docs/limits.md.
flow/prepare/keep_warm: _sessions _fixed_models _models_with_output
providers/cache_policy: _counts
flow/prepare/continuations: _kinds _waiting
flow/prepare/unread_writes: _sessions
flow/prepare/diagnoses: _ids
upstreams/refused_cache_fields: _models
flow/prepare/history_repair: _originals
flow/compare_responses: _queue _warned
providers/prices: _searched
journal/record_writer: _prompts _stored_responses _without_entry
journal/late_verdicts: _numbers _verdicts
journal/schema: _numbers _shapes _shape_texts
journal/cache_history: _regions
journal/daily_sums: _values _rows
journal/journal: _events
journal/sessions/session_matching: _contents
journal/sessions/turn_writer: _roots reuse_curves _block_sizes _limits _numbers
flow/tenants: _digests
upstreams/mirror/apply_events: blocks _children _by_content pools _pools_by_place unknown_names
upstreams/mirror/sequencer: _fingerprints _held
upstreams/mirror/replay_backlog: _messages
upstreams/fleet_engine: reuse _pending _rank_loads _loads loaded
upstreams/model_routes: fallback_counts
upstreams/retry_log: _causes
upstreams/mirror_monitor: _too_high
upstreams/engine_hints: _urls
upstreams/pending_prefixes: _by_hash _prompts
upstreams/load_times: _loads _prefill
upstreams/generated_tokens: _prefixes
upstreams/llama/slots: slots
upstreams/llama/client: _texts
engine/scheduler/scheduler: _service
http/metrics: _clients _paid_models
tiers/redis: _known
engine/text/segment_cache: _ids
# One response or request, whose size is limited.
apis/choice_streams: _choice_places _choices _head _unfinished _usage early late _messages _text_parts
apis/codecs/chat_and_completions: _chunk_head _head _offsets
apis/codecs/codec: choices
apis/codecs/messages: _head
apis/codecs/responses: _open
apis/messages: _blocks _end _inputs _start
apis/reported_usage: _timings _usage
apis/response_streams: _items _response _started _texts
engine/scheduler/sequence: _continuations _prompt_logprobs _unsent
engine/text/detokenizer: _ids
engine/text/tool_calls: _texts
flow/backend_response: _body
flow/compare_responses: _texts
flow/single_flight: _chunks _read
upstreams/mirror/prompt_hashes: tokens _hashes _contents engine_hashes
upstreams/engine_metrics: values vllm_configs
# One report on the rows of the journal, which settings limit.
journal/sessions/remedy_costs: of_marks of_one_hour lost_for_hours _sessions _open _arrivals
# Names of limits.
backends/overload_log: _next_lines
# Requests in flight, which settings limit.
flow/layers/forwarded: _equal_requests
flow/single_flight: _joinable _in_flight
flow/layers/forwarded: _releases
flow/layers/renewal: _in_flight
flow/layers/load_limit: _in_flight _waiting
http/deadlines_and_disconnects: _running
flow/prepare/keep_warm: _digests_by_request
index/store/group_commit: _waiting
clients/quotas: _charges
clients/spent_money: _charges _in_flight _released _unwritten
clients/shared_state: _held
engine/async_llm: _live
engine/core: _unsent
engine/scheduler/scheduler: _num_live _queues loading running
engine/tier_connector: _loading_keys _loads _timed_out
tiers/tier_chain: _pending
# Words of the code, settings, and clients of the operator.
flow/prepare/unread_writes: _warned
flow/layers/layer: counts
flow/compare_responses: counts
flow/prepare/keep_warm: _budgets
apis/reported_usage: _logged
clients/quotas: _quotas
clients/spent_money: _last _last_period _owed _being_written
engine/backend: _warned
engine/models/lora: _slices by_name
http/metrics: _values descriptions
http/client_authentication: _switches
http/services: _unwritten_drains
upstreams/fleet_engine: _problems
upstreams/client: _refuse_usage
backends/protocol: _functions
index/store/database: _failures _logs
index/store/writer: removal_listeners
# Tasks, connections, files, and slots of this process.
upstreams/mirror/mirror: _tasks
upstreams/fleet: _tasks
upstreams/reloaded_engines: engines _closing
upstreams/llama/server: _tasks
upstreams/llama/slot_files: _writing
http/proxy_server: _listeners _connecting
http/services: _tasks uncached_paths
journal/journal: _idle_readers _batch
journal/cache_history: _found _sizes _last_records _entries
journal/sessions/turn_writer: _rows
journal/databases/postgres: _days _pending
index/store/sqlite/database: _readers
engine/chunk_transfer: _free _slabs
engine/event_publisher: _buffer
engine/sampler: _peeked
engine/worker/kv_pool: _uploads
# One for each store of chunks.
tiers/tier_chain: _read_failures _write_failures
# Entries of the store, and of tiers.
tiers/local_stores: _chunks _sizes
index/store/writer: _hits
"""

# The test that fills each row of the table, by its constant. A test reduces a large bound.
FILLED = """
apis.api_request:MAX_MODEL_NAME journal/test_bounds.py::test_names_of_models_and_tags_are_short
apis.request_directives:MAX_TAGS apis/test_request_directives.py::test_invalid_values_are_rejected_by_name
flow.answered_bodies:MAX_ANSWERED flow/test_load_limit.py::test_only_equal_bodies_count_as_answered
apis.request_directives:MAX_TAG_LENGTH apis/test_request_directives.py::test_invalid_values_are_rejected_by_name
apis.json:MAX_TOKENS apis/test_reported_usage.py::test_formats_of_all_servers
apis.reported_usage:UNSENT_TOKENS
    apis/test_reported_usage.py::test_a_prompt_has_no_more_tokens_than_its_bytes_and_a_few_contexts
upstreams.engine_metrics:MAX_BLOCK_SIZE upstreams/test_engine_reports.py::test_impossible_metrics_are_unknown
units:MAX_SECONDS http/test_foreign_numbers.py::test_durations_are_at_most_ten_years
clients.shared_state:MAX_DEBT_MINUTES
    http/test_foreign_numbers.py::test_a_debt_ends_after_an_hour_with_the_client_or_by_a_reset
journal.journal:MAX_EXCHANGES journal/test_bounds.py::test_finished_requests_are_queued_to_the_bounds
journal.journal:_MAX_QUEUED_BYTES journal/test_bounds.py::test_finished_requests_are_queued_to_the_bounds
journal.journal:MAX_CHANGES journal/test_bounds.py::test_changes_of_the_store_are_queued_to_the_bound
journal.record_writer:_MAX_STORED_RESPONSES
    journal/test_bounds.py::test_stored_responses_are_kept_to_the_bound_until_their_requests_are_recorded
journal.record_writer:_MAX_WITHOUT_ENTRY journal/test_bounds.py::test_prompts_in_memory_are_kept_to_the_bounds
journal.late_verdicts:_MAX_WAITING journal/test_bounds.py::test_verdicts_without_a_record_are_bounded
journal.record_writer:_MAX_CACHED_PROMPTS journal/test_bounds.py::test_prompts_in_memory_are_kept_to_the_bounds
providers.prices:_MAX_SEARCHED providers/test_prices.py::test_known_prices_are_kept_to_the_bound
journal.cache_history:_MAX_CACHED_PROMPTS journal/test_bounds.py::test_prompts_in_memory_are_kept_to_the_bounds
journal.schema:MAX_NAMES journal/test_bounds.py::test_names_are_pruned_and_bounded
journal.schema:MAX_SHAPE
    journal/test_bounds.py::test_a_request_with_very_many_messages_is_recorded_without_its_regions
journal.daily_sums:MAX_ROWS_OF_TENANT
    journal/test_bounds.py::test_models_and_tags_of_a_day_are_folded_and_their_sums_stay
journal.daily_sums:MAX_ROWS_OF_DAY journal/test_bounds.py::test_tenants_of_a_day_are_folded
journal.daily_sums:DETAILED_DAYS journal/test_bounds.py::test_old_days_are_summed
journal.cache_history:_MAX_TOMBSTONES journal/test_bounds.py::test_removed_responses_are_kept_to_the_bound
journal.sessions.session_matching:_MAX_HASHES journal/test_bounds.py::test_prompts_of_sessions_are_kept_to_the_bound
journal.sessions.session_matching:_MAX_CONTENT_BYTES
    journal/sessions/test_recognition.py::test_the_oldest_contents_are_dropped
journal.sessions.turn_writer:_MAX_ROOTS
    journal/test_bounds.py::test_first_messages_of_sub_agents_are_kept_to_the_bound
journal.sessions.turn_writer:_MAX_REQUEST_IDS
    journal/test_bounds.py::test_turns_that_wait_for_keep_warm_requests_are_kept_to_the_bound
flow.prepare.continuations:_MAX_WAITING flow/test_bounds.py::test_requests_that_may_continue_are_kept_to_the_bounds
flow.prepare.unread_writes:MAX_SESSIONS flow/test_unread_writes.py::test_sessions_are_remembered_to_the_bound
flow.prepare.continuations:_MAX_KINDS flow/test_bounds.py::test_requests_that_may_continue_are_kept_to_the_bounds
upstreams.refused_cache_fields:_MAX_MODELS
    flow/test_bounds.py::test_models_whose_upstream_refuses_breakpoints_are_kept_to_the_bound
flow.prepare.diagnoses:_MAX_RESPONSES flow/test_bounds.py::test_responses_to_compare_are_kept_to_the_bound
journal.sessions.marked_regions:MAX_MARKS journal/test_bounds.py::test_few_breakpoints_of_a_prompt_are_kept
apis.message_parts:MAX_PARTS apis/test_message_parts.py::test_an_answer_is_the_only_message_of_a_response
flow.tenants:_MAX_REMEMBERED flow/test_bounds.py::test_cookies_that_upstreams_set_are_remembered_to_the_bound
flow.prepare.keep_warm:_MAX_SESSIONS flow/test_bounds.py::test_sessions_are_kept_warm_to_the_bound
flow.prepare.keep_warm:_MAX_BYTES flow/test_bounds.py::test_sessions_are_kept_warm_to_the_bound
flow.prepare.keep_warm:MAX_FIXED_MODELS
    flow/test_bounds.py::test_models_whose_prefixes_are_written_again_are_remembered_to_the_bound
providers.cache_policy:MAX_DISTRIBUTIONS flow/test_bounds.py::test_pauses_of_tenants_are_counted_to_the_bound
flow.prepare.history_repair:_MAX_BYTES flow/test_bounds.py::test_original_answers_are_kept_to_the_bound
index.pending_writes:_MAX_BYTES flow/test_pending_writes.py::test_pending_writes_are_bounded
flow.compare_responses:_MAX_QUEUED flow/test_bounds.py::test_waiting_comparisons_are_kept_to_the_bound
flow.compare_responses:MAX_WARNED flow/test_bounds.py::test_namespaces_with_a_warning_are_remembered_to_the_bound
index.policies.learned.learned_policy:_MAX_LEARNERS
    index/policies/learned/test_learned_policy.py::test_an_evicted_namespace_returns_with_the_same_state
index.search.decider:_MAX_BUDGETS
    index/search/test_judging.py::test_the_refusal_budget_forgets_the_entry_with_the_oldest_refusal
http.metrics:_MAX_CLIENTS upstreams/test_bounds.py::test_clients_in_metrics_are_summed_beyond_the_bound
http.metrics:_MAX_PAID_MODELS upstreams/test_bounds.py::test_clients_in_metrics_are_summed_beyond_the_bound
upstreams.model_routes:_MAX_COUNTED_MODELS upstreams/test_fallbacks.py::test_models_of_a_pattern_are_summed_beyond_the_bound
upstreams.retry_log:_MAX_CAUSES upstreams/test_fallbacks.py::test_causes_of_retries_are_bounded
upstreams.fleet_engine:_MAX_MODELS upstreams/test_bounds.py::test_models_of_an_upstream_are_summed_beyond_the_bound
upstreams.generated_tokens:_MAX_PREFIXES upstreams/test_bounds.py::test_restored_prefixes_are_kept_to_the_bounds
upstreams.generated_tokens:MAX_PREFIX_TOKENS upstreams/test_bounds.py::test_restored_prefixes_are_kept_to_the_bounds
upstreams.llama.client:MAX_TEXTS upstreams/test_bounds.py::test_texts_of_a_llama_server_are_kept_to_the_bound
upstreams.llama.slots:MAX_SLOTS upstreams/test_bounds.py::test_slots_of_a_llama_server_are_kept_to_the_bound
engine.scheduler.scheduler:MAX_TENANTS engine/test_scheduling.py::test_few_tenants_without_requests_are_remembered
engine.text.segment_cache:_MAX_BYTES engine/test_segments.py::test_old_segments_are_dropped_at_the_limit
tiers.redis:_MAX_KNOWN_KEYS tiers/test_stores.py::test_keys_in_redis_are_remembered_to_the_bound
upstreams.mirror.apply_events:MAX_BLOCKS
    upstreams/mirror/test_bounds.py::test_a_publisher_fills_its_blocks_to_the_bound
upstreams.mirror.apply_events:MAX_POOLS upstreams/mirror/test_bounds.py::test_a_publisher_fills_its_pools_to_the_bound
upstreams.mirror.apply_events:MAX_UNKNOWN_NAMES upstreams/mirror/test_media.py::test_the_names_of_unknown_events_are_bounded
upstreams.pending_prefixes:MAX_BLOCKS upstreams/test_pending_prefixes.py::test_prompts_are_bounded
upstreams.engine_hints:MAX_RESPONSES
    upstreams/test_engine_hints.py::test_the_engines_of_stored_responses_are_bounded_and_separate_by_tenant
upstreams.mirror.event_decoder:MAX_BLOCKS_OF_BATCH upstreams/mirror/test_bounds.py::test_oversized_fields_are_refused
upstreams.mirror.mirror:MAX_MESSAGE_BYTES
    upstreams/mirror/test_bounds.py::test_a_message_beyond_the_limit_is_not_received_and_the_next_ones_are
upstreams.mirror.sequencer:MAX_HELD_BYTES
    upstreams/mirror/test_bounds.py::test_batches_held_during_a_replay_are_bounded_and_the_lost_ones_are_replayed
upstreams.mirror.replay_backlog:MAX_REPLAY_BYTES upstreams/test_bounds.py::test_batches_of_a_replay_are_received_to_the_bound
"""


@pytest.mark.parametrize(("kept", "bound", "module", "constant"), ROWS, ids=[row[3] for row in ROWS])
def test_the_documented_bound_is_the_one_in_the_code(kept: str, bound: str, module: str, constant: str) -> None:
    value = getattr(importlib.import_module(f"kvproxy.{module}"), constant)
    forms = {f"{int(value):,}", f"{value / 2**20:g} MiB"}
    assert any(re.match(rf"{re.escape(form)}\b", bound) for form in forms), (
        f"{kept}: {bound}, but {constant} is {value:,}"
    )


def test_a_test_fills_each_row() -> None:
    words = FILLED.split()
    tests = dict(zip(words[::2], words[1::2], strict=True))
    assert set(tests) == {f"{module}:{constant}" for _, _, module, constant in ROWS}
    for test in tests.values():
        path, _, name = test.partition("::")
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.M), test


def test_the_table_is_read() -> None:
    assert len(ROWS) > 30


def test_each_container_of_an_object_is_bounded() -> None:
    known: dict[str, set[str]] = {}
    for line in BOUNDED.strip().splitlines():
        if not line.startswith("#"):
            module, _, names = line.partition(": ")
            known.setdefault(module, set()).update(names.split())
    found: dict[str, set[str]] = {}
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = str(path.relative_to(ROOT).with_suffix("")).removeprefix("kvproxy/")
            if names := set(_containers(ast.parse(path.read_text()))):
                found[module] = names
    assert {
        module: names - known.get(module, set()) for module, names in found.items() if names - known.get(module, set())
    } == {}, "bound what a client or an upstream can add, list it in docs/limits.md, and name it here"


def _containers(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for each in ast.walk(node):
                target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
                value = getattr(each, "value", None)
                if isinstance(target, ast.Attribute) and _is_container(value):
                    names.append(target.attr)
    return names


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return True
    call = value.func if isinstance(value, ast.Call) else None
    name = call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""
    return name in _CONTAINERS
