from kvproxy.apis.api import Api, ApiName
from kvproxy.apis.choices import ChoiceAssembler
from kvproxy.apis.json import JsonMap, JsonObject, field, to_text
from kvproxy.errors import InvalidRequest


class Embeddings(Api):
    name: ApiName = "embeddings"
    path = "/v1/embeddings"
    ignored_fields = frozenset({"user"})
    assembler = ChoiceAssembler

    def check(self, body: JsonMap) -> None:
        if not isinstance(body.get("input"), str | list) or not body["input"]:
            raise InvalidRequest("input is required: a text, or a list of texts", param="input")

    def is_cacheable(self, body: JsonMap) -> bool:
        return not body.get("stream")

    def display_text(self, body: JsonMap) -> str:
        return to_text(body.get("input"))

    def is_storable(self, response: JsonObject, body: JsonMap) -> bool:
        data = response.get("data")
        if not isinstance(data, list) or not data or response.get("error") is not None:
            return False
        return all(bool(field(item, "embedding")) for item in data)
