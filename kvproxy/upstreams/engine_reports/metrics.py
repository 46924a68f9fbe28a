"""An engine's own figures, from the Prometheus page that vLLM, SGLang and llama.cpp publish at `/metrics`."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

_VLLM = "vllm:cache_config_info"
_NAMES = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", _VLLM,
    "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:max_total_num_tokens",
    "sglang:page_size", "sglang:prompt_tokens_total", "sglang:cached_tokens_total",
    "llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:kv_cache_usage_ratio",
    "llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine says of itself. A field is None where it does not tell.

    Attributes:
        kind: which engine it is.
        num_blocks, block_size: of its pool.
        usage: share of the pool that requests hold, from 0 to 1.
        running, waiting: requests.
        queries, hits: prompt tokens that were looked up in its prefix cache, and found, since its start.
        hash_algorithm: how it names blocks.
        prefix_caching: whether it has a prefix cache at all.
        age: seconds since it said so.
    """

    kind: Literal["vllm", "sglang", "llama.cpp"]
    num_blocks: int | None = None
    block_size: int | None = None
    usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    queries: int | None = None
    hits: int | None = None
    hash_algorithm: str | None = None
    prefix_caching: bool | None = None
    age: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were found."""
        return self.hits / self.queries if self.queries and self.hits is not None else None


def read_figures(page: str) -> EngineFigures | None:
    """The figures on a page; None where it is of no engine that we know.

    Raises:
        ValueError: the page is no Prometheus text.
    """
    # A page has a thousand lines, of which these few matter; histograms would take most of the time.
    lines = [line for line in page.splitlines() if line.startswith(_NAMES)]
    values: dict[str, list[float]] = defaultdict(list)
    about: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                values[sample.name].append(float(sample.value))
                if sample.name == _VLLM:
                    about = dict(sample.labels)
    except LookupError:
        # The parser runs past the end of some lines that are none.
        raise ValueError("the page is no Prometheus text") from None
    engines = {name.partition(":")[0] for name in values}
    if "vllm" in engines:
        return _vllm(values, about)
    if "sglang" in engines:
        return _sglang(values)
    return _llama(values) if "llamacpp" in engines else None


_Values = dict[str, list[float]]


def _vllm(values: _Values, about: dict[str, str]) -> EngineFigures:
    """Each data-parallel engine has lines of its own; their pools are equal."""
    blocks, caching = _whole(about.get("num_gpu_blocks")), about.get("enable_prefix_caching")
    return EngineFigures(
        "vllm",
        None if blocks is None else blocks * len(values[_VLLM]),
        _whole(about.get("block_size")),
        _mean(values.get("vllm:kv_cache_usage_perc") or values.get("vllm:gpu_cache_usage_perc")),
        _sum(values, "vllm:num_requests_running"),
        _sum(values, "vllm:num_requests_waiting"),
        _sum(values, "vllm:prefix_cache_queries_total"),
        _sum(values, "vllm:prefix_cache_hits_total"),
        about.get("prefix_caching_hash_algo"),
        None if caching is None else caching == "True",
    )


def _sglang(values: _Values) -> EngineFigures:
    tokens = _sum(values, "sglang:max_total_num_tokens")
    page = round(values.get("sglang:page_size", [0])[0]) or None
    return EngineFigures(
        "sglang",
        tokens // page if tokens is not None and page else None,
        page,
        _mean(values.get("sglang:token_usage")),
        _sum(values, "sglang:num_running_reqs"),
        _sum(values, "sglang:num_queue_reqs"),
        _sum(values, "sglang:prompt_tokens_total"),
        _sum(values, "sglang:cached_tokens_total"),
    )


def _llama(values: _Values) -> EngineFigures:
    """Its prompt tokens are those that it computed. Versions that do not count the cached ones tell of neither."""
    computed, cached = _sum(values, "llamacpp:prompt_tokens_total"), _sum(values, "llamacpp:prompt_tokens_cached_total")
    return EngineFigures(
        "llama.cpp",
        usage=_mean(values.get("llamacpp:kv_cache_usage_ratio")),
        running=_sum(values, "llamacpp:requests_processing"),
        waiting=_sum(values, "llamacpp:requests_deferred"),
        queries=None if computed is None or cached is None else computed + cached,
        hits=cached,
    )


def _sum(values: _Values, name: str) -> int | None:
    found = [value for value in values.get(name, ()) if abs(value) < 2**53]
    return round(sum(found)) if found else None


def _mean(values: Sequence[float] | None) -> float | None:
    return sum(values) / len(values) if values else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None
