"""Fields of a request in the engine's terms, and the fields that the engine cannot honour."""

from kvproxy.apis.fields import check_flag, check_integer
from kvproxy.apis.json import Json, JsonMap, JsonObject, field
from kvproxy.errors import InvalidRequest

_MOST_ANSWERS = 128
# Fields that would change the answer and that the engine does not have, with the values that mean "not used".
_ABSENT: dict[str, tuple[Json, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "use_beam_search": (False,),
    "web_search_options": (),
}


def check_engine(body: JsonMap) -> None:
    """Refuse what the engine does not have, and values out of its range; raises InvalidRequest."""
    for name, unused in _ABSENT.items():
        if body.get(name) is not None and body[name] not in unused:
            raise InvalidRequest(f"the embedded engine has no {name}: leave it out, or use --upstream", param=name)
    check_integer(body, "top_k", least=-1, most=2**31 - 1)
    check_integer(body, "seed", least=-(2**63), most=2**64 - 1)
    check_integer(body, "priority", least=-(2**31), most=2**31 - 1)
    check_integer(body, "n", least=1, most=_MOST_ANSWERS)
    check_integer(body, "prompt_logprobs", least=0, most=20)
    check_flag(body, "ignore_eos")
    check_flag(body, "echo")
    if body.get("stream") and body.get("prompt_logprobs") is not None:
        raise InvalidRequest("prompt_logprobs come with whole answers only: leave out stream", param="prompt_logprobs")
    if not isinstance(body.get("cache_salt"), str | None):
        raise InvalidRequest("cache_salt is a text", param="cache_salt")


def refuse(body: JsonMap, names: tuple[str, ...]) -> None:
    """Refuse fields that the engine cannot honour, whatever their value."""
    for name in names:
        if body.get(name):
            raise InvalidRequest(f"the embedded engine has no {name}: leave it out, or use --upstream", param=name)


def integer(body: JsonMap, name: str) -> int | None:
    """A whole number that was checked before."""
    value = body.get(name)
    return value if isinstance(value, int) else None


def number(body: JsonMap, name: str) -> float | None:
    """A number that was checked before."""
    value = body.get(name)
    return float(value) if isinstance(value, int | float) else None


def texts(body: JsonMap, name: str) -> tuple[str, ...]:
    """A text or a list of texts that was checked before."""
    value = body.get(name)
    if isinstance(value, str):
        return (value,)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def salt(body: JsonMap) -> str | None:
    """The request's cache salt."""
    value = body.get("cache_salt")
    return value if isinstance(value, str) else None


def only_text(param: str) -> InvalidRequest:
    """The error for a prompt with parts that are no text."""
    return InvalidRequest("the embedded engine takes text only: send text parts, or use --upstream", param=param)


def flat(message: JsonObject) -> JsonObject:
    """A chat message with its content as one text, which is what chat templates take."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": content or ""}
    parts: list[str] = []
    for part in content:
        text = field(part, "text")
        if field(part, "type") != "text" or not isinstance(text, str):
            raise only_text("messages")
        parts.append(text)
    return {**message, "content": "".join(parts)}
