"""Settings of rules: what holds for some requests and not for others."""

from pydantic import BaseModel, ConfigDict, Field


class RuleSettings(BaseModel):
    """One rule. In patterns `*` stands for any text. What is not given matches everything, or changes nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64, description="Its name, shown by `kvproxy explain`.")
    path: str | None = Field(None, description="Pattern of the route, as /v1/chat/*.")
    model: str | None = Field(None, description="Pattern of the model that is asked for.")
    tenant: str | None = Field(None, description="Pattern of a client's name, or of a tenant as listings show it.")
    headers: dict[str, str] = Field({}, description="Patterns of headers by their names; all must be there and match.")
    tag: str | None = Field(None, description="Pattern of a tag that the request gives its answer.")
    cache: bool | None = Field(None, description="False: neither answer from stored responses nor store the answer.")
    semantic: bool | None = Field(None, description="False: answer from equal requests only.")
    ttl: float | None = Field(None, gt=0, description="Seconds that an answer may be served, in place of cache.ttl.")
    similarity: float | None = Field(None, ge=0, le=1, description="Least cosine similarity of a semantic hit.")
    level: float | None = Field(None, ge=0, le=1, description="Least probability of the verifier.")
    max_error: float | None = Field(None, ge=0, le=1, description="Largest probability of a wrong answer.")
    tags: tuple[str, ...] = Field((), description="Tags that the stored answer gets too.")
