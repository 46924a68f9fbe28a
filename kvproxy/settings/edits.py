from typing import Literal

from pydantic import Field, field_validator

from kvproxy.settings.section import Section, compile_pattern


class EditSettings(Section):
    """An edit of requests, after which their prompts share a longer prefix; `kvproxy lint` suggests edits."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the edit in headers and records."
    )
    model: str = Field("*", description="Pattern of models whose requests are edited; * matches any text.")
    action: Literal["strip", "move", "sort-tools"] = Field(
        description="Remove a span, move it to the end of the last message, or sort tools by name."
    )
    role: Literal["system", "user", "assistant", "prompt"] = Field(
        "system", description="Role of the edited messages; prompt means plain prompts."
    )
    pattern: str | None = Field(None, description="Regular expression (Python) whose only group is the span.")
    lead: str = Field("", description="Text before a moved span.")

    @field_validator("pattern")
    @classmethod
    def _check_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        groups = compile_pattern(pattern).groups
        if groups != 1:
            raise ValueError(f"{pattern!r} has {groups} groups: enclose only the span in ( )")
        return pattern
