"""Names the fields of requests that the embedded engine accepts and ignores, so that a response can report them."""

import re
from collections.abc import Iterable, Iterator

from kvproxy.apis.json import Json, JsonMap, JsonObject, field, objects
from kvproxy.apis.key_fields import KeyFields

_MAX_NAMES = 32
_MAX_LENGTH = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_SHARED = frozenset(
    "model messages prompt input system instructions tools tool_choice parallel_tool_calls temperature top_p top_k seed n stop"
    " stop_sequences max_tokens max_completion_tokens max_output_tokens logprobs top_logprobs prompt_logprobs response_format"
    " output_config output_format text reasoning thinking echo ignore_eos cache_salt priority"
    # Hints for the speed, and names that other servers use for accounting.
    " prediction fallbacks request_id".split()
)
"""Fields that the engine reads in an API that has them, or whose parts are listed one by one."""
_DEFAULTS: dict[str, tuple[Json, ...]] = {
    "truncation": ("disabled",),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "add_generation_prompt": (True,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}
_FUNCTION_TYPES = (None, "function", "custom", "namespace")


def ignored_fields(body: JsonMap, fields: KeyFields, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of fields with an effect, which the engine ignores. `known` fields have been checked already."""
    checked = _SHARED.union(known)
    names = [
        name
        for name, value in fields.relevant_items(body)
        if name not in checked and value not in (False, [], {}, "") and value not in _DEFAULTS.get(name, ())
    ]
    names += _parts(body)
    return tuple(_UNSAFE.sub("_", name[:_MAX_LENGTH]) for name in dict.fromkeys(names))[:_MAX_NAMES]


def _parts(body: JsonMap) -> Iterator[str]:
    for path, defaults in (
        ("output_config.effort", ()),
        ("output_config.task_budget", ()),
        ("thinking.budget_tokens", ()),
        ("thinking.display", ("summarized",)),
        ("thinking.block_binding", ({},)),
        ("text.verbosity", ("medium",)),
        ("reasoning.effort", ("none",)),
        ("reasoning.summary", ()),
        ("reasoning.generate_summary", ()),
    ):
        holder, _, name = path.partition(".")
        value = field(body.get(holder), name)
        if value is not None and value not in defaults:
            yield path
    for tool in _flat_tools(body.get("tools")):
        kind = tool.get("type")
        if kind not in _FUNCTION_TYPES:
            yield f"tools.{kind}"
        elif kind == "custom" and field(tool.get("format"), "type") not in (None, "text"):
            yield f"tools.{tool.get('name')}.format"


def _flat_tools(tools: Json) -> Iterator[JsonObject]:
    for tool in objects(tools):
        yield tool
        if tool.get("type") == "namespace":
            yield from objects(tool.get("tools"))
