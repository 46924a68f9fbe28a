"""Settings of what is changed in requests before they are looked up and sent on."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class EditSettings(BaseModel):
    """One change, which makes the beginnings of prompts alike; `kvproxy lint` finds where one is worth it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Its name, told in headers and records."
    )
    model: str = Field("*", description="Models whose requests are changed; * stands for any characters.")
    action: Literal["strip", "move", "sort-tools"] = Field(
        description="Take a span out, put it at the end of the last message, or put tools in the order of their names."
    )
    role: Literal["system", "user", "assistant", "prompt"] = Field(
        "system", description="Whose texts the span is looked for in; prompt stands for plain prompts."
    )
    pattern: str | None = Field(None, description="A regular expression of Python whose first group is the span.")
    lead: str = Field("", description="Text that is put before a span that is moved.")

    @field_validator("pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from None
        if groups != 1:
            raise ValueError(f"{pattern!r} has {groups} groups: put the span, and nothing else, into ( )")
        return pattern
