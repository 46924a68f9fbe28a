"""What `explain` predicts of a request: which layer would answer it, and the decision of each layer."""

from dataclasses import dataclass

from kvproxy.apis.model_route import ModelRoute
from kvproxy.backends.reports import PrefixReport
from kvproxy.index.entry import Freshness, Stale
from kvproxy.index.policies.policy import LearningStatus, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactExplanation:
    """The lookup of an equal request; `id` names a stored response that may be served, now or after an error; or None."""

    hit: bool
    id: str | None
    freshness: Freshness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourExplanation:
    """A stored question beside the request's, and the decision on it.

    Attributes:
        guard: name of the guard that vetoed it.
        why: the verdict as a sentence.
        score: the verifier's probability; None if it was not computed.
        error: estimated probability of a wrong answer; None if it was not computed.
        served: whether the request would receive its response.
    """

    id: str
    prompt: str
    similarity: float
    verdict: Verdict
    guard: str | None
    why: str
    score: float | None
    error: float | None
    served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticExplanation:
    """The search for similar questions. A limit is None if the policy has no such limit.

    Attributes:
        policy: None if no search takes place; `reason` says why.
        max_error: maximum share of wrong hits among all hits of the namespace.
        max_hit_error: maximum probability that a hit is wrong; None without a limit of the request or its rule.
        learned: what the policy `learned` knows of the namespace; None without it.
        shadow: accepted responses are counted, but not served.
        question: the compared part of the last user message, if its other text, or a text that an edit moves there, must be
            equal; None if all is compared.
    """

    policy: str | None = None
    min_similarity: float | None = None
    min_probability: float | None = None
    max_error: float | None = None
    max_hit_error: float | None = None
    learned: LearningStatus | None = None
    shadow: bool = False
    neighbours: tuple[NeighbourExplanation, ...] = ()
    reason: str | None = None
    question: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference:
    """A part of a request whose value differs in a stored request; None if it is unset."""

    part: str
    stored: object
    request: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosestRequest:
    """The stored request with the same question and the fewest differences; `id` names its response.

    `similarity` is the cosine of its question, if that is only similar; None for the same question.
    """

    id: str
    differs: tuple[FieldDifference, ...]
    similarity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsExplanation:
    """The inputs of an array that are cached one by one.

    Attributes:
        cached: inputs whose stored responses would be served.
        stale: reason to serve some of them stale; None if all are fresh, or if other inputs would be computed.
    """

    count: int
    cached: int
    stale: Stale | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """The prediction for a request.

    Attributes:
        layer: `exact`, `semantic`, `shared` (an identical request in flight), `refused`, `prefix` (a miss for which the engine
            would reuse a part of the prompt), `plugin`, or `none`.
        other_tenants: whether another tenant stored an identical request.
        key: digest of the request that an exact hit requires.
        namespace: digest of the parts that a semantic hit requires to be equal.
        prefix: None if the backend does not report its prefix cache.
        rule: name of the request's rule.
        route: None if all upstreams serve the same models.
        inputs: the lookup of each input of an array; None for another request.
        refusal: why the proxy would refuse the client or its model; None if it accepts both.
    """

    layer: str
    api: str
    tenant: str
    other_tenants: bool
    closest: ClosestRequest | None
    key: str
    namespace: str
    exact: ExactExplanation
    semantic: SemanticExplanation
    prefix: PrefixReport | None
    rule: str | None
    route: ModelRoute | None
    inputs: InputsExplanation | None = None
    refusal: str | None = None
