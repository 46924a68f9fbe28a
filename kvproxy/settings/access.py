from typing import Literal

from pydantic import Field

from kvproxy.settings.section import Section

TENANT_HEADERS = tuple(
    "authorization api-key x-api-key x-goog-api-key x-litellm-api-key x-auth-token x-forwarded-user x-forwarded-email"
    " x-auth-request-user x-auth-request-email x-remote-user remote-user openai-organization openai-project cookie".split()
)


class AccessSettings(Section):
    """Access to the proxy."""

    origins: tuple[str, ...] = Field(
        (), description="Origins of web pages that may call the proxy, such as https://chat.example.org; * allows all."
    )
    open: bool = Field(False, description="Accept all clients beyond loopback without API keys.")
    hosts: tuple[str, ...] = Field(
        (),
        description="Public host names of the proxy, such as llm.example.org. IP addresses, localhost and private names need no"
        " entry.",
    )
    priorities: Literal["tenant", "all"] = Field(
        "tenant",
        description="Scope of `priority` and x-kvproxy-priority: requests of the same tenant, or all requests. With"
        " all, blocks of low priority are evicted first.",
    )
    tenant_headers: tuple[str, ...] = Field(
        TENANT_HEADERS, description="Headers that identify tenants; tenants do not share responses."
    )
