"""The reasoning of a model: the text between two tokens, such as `<think>` and `</think>`, before the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kvproxy.engine.text.detokenizer import overlap_length
from kvproxy.generation import Delta

_PAIRS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
_OPENING_TOKENS = 3
"""A chat template writes at most two tokens, such as line breaks, after the token that begins the reasoning."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tokens around the reasoning, by their texts and their ids."""

    begin: str
    end: str
    begin_id: int
    end_id: int

    def begins_in(self, prompt: Sequence[int]) -> bool:
        """Whether the chat template begins the reasoning at the end of a prompt, so that the output continues it."""
        last = [token for token in prompt[-_OPENING_TOKENS:] if token in (self.begin_id, self.end_id)]
        return bool(last) and last[-1] == self.begin_id


def reasoning_format(visible_tokens: Mapping[str, int]) -> ReasoningFormat | None:
    """Return the format of a model with these added tokens; None for a model without reasoning.

    Args:
        visible_tokens: ids of the added tokens that are part of the output's text.
    """
    for begin, end in _PAIRS:
        if begin in visible_tokens and end in visible_tokens:
            return ReasoningFormat(begin, end, visible_tokens[begin], visible_tokens[end])
    return None


@dataclass(slots=True)
class _Completion:
    state: Literal["begin", "reasoning", "answer"]
    pending: str = ""


@dataclass(slots=True)
class ReasoningParser:
    """Separates the reasoning from the answer in a stream of deltas.

    Attributes:
        begins_in_prompt: the output continues reasoning that began in the prompt.
    """

    form: ReasoningFormat
    begins_in_prompt: bool
    _completions: dict[int, _Completion] = field(default_factory=dict)

    def parse(self, delta: Delta) -> Delta:
        """Return the delta with its reasoning apart from its text.

        The end of a text that may begin the token `begin` or `end` of the format waits for the next delta.
        """
        first = _Completion("reasoning" if self.begins_in_prompt else "begin")
        completion = self._completions.setdefault(delta.index, first)
        if completion.state == "answer":
            return delta
        form, is_last = self.form, delta.finish_reason is not None
        text, reasoning, completion.pending = completion.pending + delta.text, "", ""
        if completion.state == "begin":
            start = text.lstrip()
            if start.startswith(form.begin):
                completion.state, text = "reasoning", start[len(form.begin) :]
            elif form.begin.startswith(start) and not is_last:
                completion.pending, text = text, ""
            else:
                completion.state = "answer"
        if completion.state == "reasoning":
            reasoning, ended, answer = text.partition(form.end)
            if ended:
                completion.state = "answer"
            elif not is_last:
                waiting = overlap_length(reasoning, form.end)
                reasoning, completion.pending = (
                    reasoning[: len(reasoning) - waiting],
                    reasoning[len(reasoning) - waiting :],
                )
            text = answer
        return replace(delta, text=text, reasoning=reasoning)
