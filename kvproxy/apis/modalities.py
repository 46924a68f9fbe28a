"""Reads what changes the price of a request's tokens: audio, images, and the region of Anthropic's inference."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kvproxy.apis.json import Json, JsonMap, as_token_count, field, loads, objects
from kvproxy.apis.reported_usage import reported_reuse, tokens_used, usage_of

MODALITIES = ("audio", "image")
_DETAILS = {
    "input": ("prompt_tokens_details", "input_tokens_details", "promptTokensDetails"),
    "output": ("completion_tokens_details", "output_tokens_details", "candidatesTokensDetails"),
}

# Most responses report 0 audio tokens and no region, and need not be parsed.
_POSITIVE = re.compile(rb'"(?:audio|image)_tokens":\s*[1-9]|"inference_geo":\s*"(?!global"|not_available"|")')
_ANYWHERE = "", "global", "not_available"
_REGION = "inference_geo="
_PAIR = r"(?:input|cached|output)_(?:audio|image)=\d{1,15}/[1-9]\d{0,14}"
_TEXT = re.compile(f"(?:{_PAIR}(?:,{_PAIR})*)?(?:(?:^|,){_REGION}[a-z0-9-]{{1,32}})?")


class Part(NamedTuple):
    """Tokens of one modality, of all tokens with one kind of price.

    Attributes:
        kind: `input` for uncached tokens of the prompt, `cached` for reused ones, or `output`.
        modality: one of `MODALITIES`.
    """

    kind: str
    modality: str
    tokens: int
    total: int


def reported_modalities(response: JsonMap) -> str | None:
    """Return the audio and image tokens of a response, and its region, as in `modalities_text`; None without them.

    OpenAI and its likes report `audio_tokens` and `image_tokens` in the details of the usage, and Gemini a list of modalities.
    Anthropic reports `inference_geo`.
    """
    usage = usage_of(response)
    counts = {
        (kind, modality): count
        for kind, names in _DETAILS.items()
        if (reports := [report for name in names if (report := field(usage, name))])
        for modality in MODALITIES
        if (count := max(_reported(report, modality) for report in reports))
    }
    used = tokens_used(response) if counts else None
    if used is None:
        return with_region(None, field(usage, "inference_geo"))
    reuse = reported_reuse(response)
    prompt, cached = (used[0], 0) if reuse is None else (reuse.prompt_tokens, reuse.cached_tokens)
    return with_region(modalities_text(counts, prompt, cached, used[1]), field(usage, "inference_geo"))


def stored_modalities(response: bytes) -> str | None:
    """Return the audio and image tokens of a stored response; see `reported_modalities`."""
    if _POSITIVE.search(response) is None:
        return None
    body = loads(response)
    return reported_modalities(body) if isinstance(body, dict) else None


def _reported(details: Json, modality: str) -> int:
    named = [entry.get("tokenCount") for entry in objects(details) if str(entry.get("modality")).lower() == modality]
    count = field(details, f"{modality}_tokens") if isinstance(details, dict) else next(iter(named), None)
    return as_token_count(count) or 0


def modalities_text(counts: Mapping[tuple[str, str], int], prompt: int, cached: int, completion: int) -> str | None:
    """Return audio and image tokens as text, such as `input_audio=800/1000,output_audio=400/500`; None without any.

    The second number of a pair is that of all tokens with this kind of price. Reports do not state the modalities of the
    provider's cache, so cached tokens are text as far as possible.

    Args:
        counts: tokens by kind (`input` or `output`) and modality.
        prompt: all tokens of the prompt, including the cached ones.
    """
    parts, free = [], {"input": max(0, prompt - cached), "cached": cached, "output": completion}
    totals = dict(free)
    for modality in MODALITIES:
        for reported, kinds in (("input", ("input", "cached")), ("output", ("output",))):
            rest = counts.get((reported, modality), 0)
            for kind in kinds:
                tokens = min(rest, free[kind])
                free[kind], rest = free[kind] - tokens, rest - tokens
                if tokens:
                    parts.append(f"{kind}_{modality}={tokens}/{totals[kind]}")
    return ",".join(parts) or None


def with_region(text: str | None, inference_geo: Json) -> str | None:
    """Return a text of `modalities_text` with the region in Anthropic's usage at its end, such as `inference_geo=us`."""
    if not isinstance(inference_geo, str) or (region := inference_geo.strip().lower()) in _ANYWHERE:
        return text
    return ",".join(filter(None, (text, _REGION + re.sub("[^a-z0-9]", "-", region)[:32])))


def region_of(text: str | None) -> str | None:
    """Return the region at the end of a text of `with_region`; None without one."""
    _, mark, region = (text or "").rpartition(_REGION)
    return region if mark else None


def without_region(text: str | None) -> str | None:
    return text and (text.partition(_REGION)[0].rstrip(",") or None)


def logged_modalities(value: Json) -> str | None:
    """Return a logged text of `modalities_text` and `with_region`; None for another value."""
    return value if isinstance(value, str) and value and _TEXT.fullmatch(value) is not None else None


def read_modalities(text: str) -> list[Part]:
    """Return the parts of a text of `modalities_text`."""
    parts = []
    for pair in filter(None, (without_region(text) or "").split(",")):
        name, _, numbers = pair.partition("=")
        kind, _, modality = name.partition("_")
        tokens, _, total = numbers.partition("/")
        parts.append(Part(kind, modality, int(tokens), int(total)))
    return parts
