"""The demonstration server as an upstream, which reports what it would reuse of a prompt."""

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import field
from kvproxy.backends.reports import PrefixReport
from kvproxy.demo import REUSE_PATH
from kvproxy.errors import KvproxyError
from kvproxy.upstreams.kind import UpstreamKind

_SECONDS = 5.0


class DemoServer(UpstreamKind):
    async def explain(self, request: ApiRequest) -> PrefixReport:
        path = f"{request.api.path}{REUSE_PATH}"
        try:
            status, reply = await self.client.call_json("POST", path, request.body, seconds=_SECONDS)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        if status != 200:
            return PrefixReport(reason=str(field(field(reply, "error"), "message")))
        prompt, reused = field(reply, "prompt_tokens"), field(reply, "reused_tokens")
        assert isinstance(prompt, int)
        assert isinstance(reused, int)
        return PrefixReport(prompt_tokens=prompt, matched_tokens=reused, engine=self.client.url)
