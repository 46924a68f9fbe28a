"""What a server says that it reused of a prompt, in whichever of the forms that servers have for it."""

from kvproxy.apis.json import Json, JsonMap, field


def reported_reuse(whole: JsonMap) -> tuple[int, int] | None:
    """Tokens of the prompt, and how many of them came from the server's own cache; None where it does not tell.

    OpenAI, vLLM and SGLang have `usage.prompt_tokens_details.cached_tokens` (`input_tokens_details` in Responses), llama.cpp
    `timings.cache_n`, Anthropic `cache_read_input_tokens` beside the tokens that were not read, DeepSeek
    `prompt_cache_hit_tokens`.
    """
    usage, timings = whole.get("usage"), whole.get("timings")
    prompt, read = _count(field(usage, "input_tokens")), _count(field(usage, "cache_read_input_tokens"))
    if prompt is not None and read is not None:
        return prompt + read + (_count(field(usage, "cache_creation_input_tokens")) or 0), read
    prompt = _count(field(usage, "prompt_tokens")) if prompt is None else prompt
    told = [
        field(field(usage, "prompt_tokens_details"), "cached_tokens"),
        field(field(usage, "input_tokens_details"), "cached_tokens"),
        field(usage, "prompt_cache_hit_tokens"),
        field(timings, "cache_n"),
    ]
    cached = next((count for each in told if (count := _count(each)) is not None), None)
    if prompt is None and cached is not None and (computed := _count(field(timings, "prompt_n"))) is not None:
        # A stream of llama.cpp has its timings, and its usage only where the client asks for it.
        prompt = cached + computed
    return None if prompt is None or cached is None else (prompt, min(cached, prompt))


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
