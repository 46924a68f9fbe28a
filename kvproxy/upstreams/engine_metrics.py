"""Reads the Prometheus metrics of vLLM, SGLang, and llama.cpp."""

from collections import defaultdict
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from kvproxy.backends.reports import EngineMetrics

_VLLM = "vllm:cache_config_info"
_PREFIXES = ("vllm:", "sglang:", "llamacpp:")
MAX_BLOCK_SIZE = 2**20
"""Most tokens of a credible KV block."""
_MAX_NUMBER = 2**53
_MAX_NAME = 64


class _MetricSamples:
    def __init__(self, page: str) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self.vllm_configs: list[dict[str, str]] = []
        # Skip histograms, which would take most of the time.
        lines = [line for line in page.splitlines() if line.startswith(_PREFIXES) and "_bucket{" not in line]
        try:
            for family in text_string_to_metric_families("\n".join(lines) + "\n"):
                for sample in family.samples:
                    self.values[sample.name].append(float(sample.value))
                    if sample.name == _VLLM:
                        self.vllm_configs.append(dict(sample.labels))
        except LookupError:
            # The parser reads past the end of some invalid lines.
            raise ValueError("the page is not Prometheus text") from None

    def sum(self, name: str) -> int | None:
        samples = [value for value in self.values.get(name, ()) if 0 <= value < _MAX_NUMBER]
        return round(sum(samples)) if samples else None

    def mean(self, *names: str) -> float | None:
        values: Sequence[float] = next((samples for name in names if (samples := self.values.get(name))), ())
        samples = [value for value in values if 0 <= value < _MAX_NUMBER]
        return sum(samples) / len(samples) if samples else None


def read_metrics(page: str) -> EngineMetrics | None:
    """Parse a page of `/metrics`; None if it has no metric of a supported engine. Raises ValueError."""
    samples = _MetricSamples(page)
    engines = {name.partition(":")[0] for name in samples.values}
    if "vllm" in engines:
        return _read_vllm(samples)
    if "sglang" in engines:
        return _read_sglang(samples)
    return _read_llama(samples) if "llamacpp" in engines else None


def _read_vllm(samples: _MetricSamples) -> EngineMetrics:
    # Each data-parallel engine reports its own pool.
    pools = [_parse_int(config.get("num_gpu_blocks")) for config in samples.vllm_configs]
    blocks = [number for number in pools if number is not None]
    config = samples.vllm_configs[-1] if samples.vllm_configs else {}
    caching = config.get("enable_prefix_caching")
    return EngineMetrics(
        "vllm",
        num_blocks=sum(blocks) if blocks and len(blocks) == len(pools) else None,
        block_size=_block_size(_parse_int(config.get("block_size"))),
        usage=samples.mean("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        running=samples.sum("vllm:num_requests_running"),
        waiting=samples.sum("vllm:num_requests_waiting"),
        queries=samples.sum("vllm:prefix_cache_queries_total"),
        hits=samples.sum("vllm:prefix_cache_hits_total"),
        hash_algorithm=config.get("prefix_caching_hash_algo", "")[:_MAX_NAME] or None,
        prefix_caching=None if caching is None else caching == "True",
        match_unit=_block_size(_parse_int(config.get("hash_block_size") or config.get("prefix_match_unit"))),
        hit_unit=_block_size(_parse_int(config.get("cache_hit_alignment_tokens"))),
    )


def _read_sglang(samples: _MetricSamples) -> EngineMetrics:
    tokens = samples.sum("sglang:max_total_num_tokens")
    page_size = _block_size(round(samples.mean("sglang:page_size") or 0))
    return EngineMetrics(
        "sglang",
        num_blocks=tokens // page_size if tokens is not None and page_size else None,
        block_size=page_size,
        usage=samples.mean("sglang:token_usage"),
        running=samples.sum("sglang:num_running_reqs"),
        waiting=samples.sum("sglang:num_queue_reqs"),
        queries=samples.sum("sglang:prompt_tokens_total"),
        hits=samples.sum("sglang:cached_tokens_total"),
    )


def _read_llama(samples: _MetricSamples) -> EngineMetrics:
    computed = samples.sum("llamacpp:prompt_tokens_total")
    cached = samples.sum("llamacpp:prompt_tokens_cached_total")
    return EngineMetrics(
        "llama.cpp",
        usage=samples.mean("llamacpp:kv_cache_usage_ratio"),
        running=samples.sum("llamacpp:requests_processing"),
        waiting=samples.sum("llamacpp:requests_deferred"),
        queries=None if computed is None or cached is None else computed + cached,
        hits=cached,
    )


def _block_size(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 < tokens <= MAX_BLOCK_SIZE else None


def _parse_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None
