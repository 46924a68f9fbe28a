"""Settings of who may do what."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TENANT_HEADERS = (
    "authorization",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    "x-litellm-api-key",
    "x-auth-token",
    "x-forwarded-user",
    "x-forwarded-email",
    "x-auth-request-user",
    "x-auth-request-email",
    "x-remote-user",
    "remote-user",
    "openai-organization",
    "openai-project",
    "cookie",
)


class AccessSettings(BaseModel):
    """Who may do what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    origins: tuple[str, ...] = Field(
        (), description="Origins of web pages that may use the proxy, as https://chat.example.org; * is every page."
    )
    open: bool = Field(False, description="Serve beyond loopback to everybody, without clients and their keys.")
    hosts: tuple[str, ...] = Field(
        (),
        description="Public names that this proxy is reached by, as llm.example.org. Addresses, localhost and names that are"
        " not public need no entry.",
    )
    priorities: Literal["tenant", "all"] = Field(
        "tenant",
        description="Among whom `priority` and x-kvproxy-priority rank a request: a tenant's own requests, or all. Only with all"
        " do blocks of a higher priority outlive those of a lower one.",
    )
    tenant_headers: tuple[str, ...] = Field(
        TENANT_HEADERS, description="Headers that tell clients apart: answers are kept apart by what they hold."
    )
