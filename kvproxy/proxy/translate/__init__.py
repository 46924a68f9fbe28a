"""APIs that the embedded engine answers by way of chat completions, one file each."""

from kvproxy.proxy.translate.messages import MessagesTranslator
from kvproxy.proxy.translate.responses import ResponsesTranslator
from kvproxy.proxy.translate.translator import Translator

TRANSLATORS: dict[str, Translator] = {"messages": MessagesTranslator(), "responses": ResponsesTranslator()}
