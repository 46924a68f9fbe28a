"""A model's reasoning: the text before the answer, between two tokens such as `<think>` and `</think>`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kvproxy.apis.codecs.generation import Delta
from kvproxy.engine.text.detokenizer import partial_match_length

_PAIRS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
_MAX_OPENING_TOKENS = 3


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    begin: str
    end: str
    begin_id: int
    end_id: int

    def begins_in(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends inside the reasoning, for example with `<think>`, so that the output continues it."""
        last = [token for token in prompt[-_MAX_OPENING_TOKENS:] if token in (self.begin_id, self.end_id)]
        return bool(last) and last[-1] == self.begin_id


def find_reasoning_format(visible_tokens: Mapping[str, int]) -> ReasoningFormat | None:
    """Return the format of a model's reasoning; None if `visible_tokens` has no pair such as `<think>` and `</think>`."""
    for begin, end in _PAIRS:
        if begin in visible_tokens and end in visible_tokens:
            return ReasoningFormat(begin, end, visible_tokens[begin], visible_tokens[end])
    return None


@dataclass(slots=True)
class _ParserState:
    phase: Literal["begin", "reasoning", "answer"]
    pending: str = ""


@dataclass(slots=True)
class ReasoningParser:
    form: ReasoningFormat
    begins_in_prompt: bool  # the output continues reasoning that began in the prompt
    _states: dict[int, _ParserState] = field(default_factory=dict)

    def parse(self, delta: Delta) -> Delta:
        """Move the reasoning of a delta from `text` to `reasoning`. A part of a begin or end token waits for the next delta."""
        first = _ParserState("reasoning" if self.begins_in_prompt else "begin")
        state = self._states.setdefault(delta.index, first)
        if state.phase == "answer":
            return delta
        form, is_last = self.form, delta.finish_reason is not None
        text, reasoning, state.pending = state.pending + delta.text, "", ""
        if state.phase == "begin":
            start = text.lstrip()
            if start.startswith(form.begin):
                state.phase, text = "reasoning", start[len(form.begin) :]
            elif form.begin.startswith(start) and not is_last:
                state.pending, text = text, ""
            else:
                state.phase = "answer"
        if state.phase == "reasoning":
            reasoning, ended, answer = text.partition(form.end)
            if ended:
                state.phase = "answer"
            elif not is_last:
                end = len(reasoning) - partial_match_length(reasoning, form.end)
                reasoning, state.pending = reasoning[:end], reasoning[end:]
            text = answer
        return replace(delta, text=text, reasoning=reasoning)
