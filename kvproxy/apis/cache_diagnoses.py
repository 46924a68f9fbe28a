"""The providers' own explanations why a prompt's prefix was not reused (Anthropic: `diagnostics`, OpenAI: Responses).

Sources: platform.claude.com/docs/en/build-with-claude/cache-diagnostics and
developers.openai.com/api/docs/guides/prompt-caching/diagnostics, October 2026.
"""

from kvproxy.apis.json import JsonMap, field

UNCHANGED = "unchanged"
"""The provider compared both prompts, and found the earlier one at the beginning of the later one."""
PENDING = "pending"
_LONGEST_NAME = 64
# The part of the prompt that a diagnosis names. The other diagnoses are no comparison of the prompts.
_PARTS = {
    "model_changed": "model",
    "tools_changed": "tools",
    "system_changed": "system",
    "messages_changed": "messages",
    "input_changed": "input",
    "context_compacted": "input",
    "text_format_changed": "text",
    "verbosity_changed": "text",
    "reasoning_effort_changed": "reasoning",
    UNCHANGED: "",
}
# Names of regions of a prompt (see `journal/request_regions.py`) by the part that the providers name.
_REGIONS = {"instructions": "input", "reasoning_effort": "reasoning"}


def reported_diagnosis(body: JsonMap, response: JsonMap) -> str | None:
    """Return the diagnosis in the response to a request with this body; None if no diagnosis was requested or reported.

    A diagnosis is `unchanged`, `pending`, or a name of the provider, such as `tools_changed`.
    """
    if isinstance(field(body.get("diagnostics"), "previous_message_id"), str):
        return _anthropic_diagnosis(response)
    if isinstance(field(body.get("prompt_cache_options"), "comparison_response_id"), str):
        return _openai_diagnosis(response)
    return None


def _anthropic_diagnosis(response: JsonMap) -> str | None:
    if "diagnostics" not in response:
        return None
    diagnostics = response["diagnostics"]
    if diagnostics is None:
        return UNCHANGED
    reason = field(diagnostics, "cache_miss_reason")
    return PENDING if reason is None else _name(field(reason, "type"))


def _openai_diagnosis(response: JsonMap) -> str | None:
    diagnostics = response.get("prompt_cache_diagnostics")
    kind = field(diagnostics, "type")
    if kind == "cache_hit":
        return UNCHANGED
    return _name(field(diagnostics, "reason") if kind == "cache_miss" else kind)


def _name(value: object) -> str | None:
    return value[:_LONGEST_NAME] if isinstance(value, str) and value else None


def agrees_with(diagnosis: str, changed_region: str | None) -> bool | None:
    """Whether a diagnosis names the part of the prompt in which we found the first change; None without a comparison.

    Args:
        changed_region: name of the first changed region, such as `messages[2] user`; None if the earlier prompt begins the
            later one.
    """
    if diagnosis not in _PARTS:
        return None
    region = "" if changed_region is None else changed_region.partition("[")[0].partition(" ")[0]
    return _REGIONS.get(region, region) == _PARTS[diagnosis]
