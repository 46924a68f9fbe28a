"""How the embedded engine answers each API: what it needs of a request, and how what it says is written, once.

`speaker.py` is the protocol, one file each implements it.
"""

from kvproxy.apis.api import ApiName
from kvproxy.apis.embedded.chat import ChatSpeaker
from kvproxy.apis.embedded.completions import CompletionsSpeaker
from kvproxy.apis.embedded.messages import MessagesSpeaker
from kvproxy.apis.embedded.responses import ResponsesSpeaker
from kvproxy.apis.embedded.speaker import Speaker

SPEAKERS: dict[ApiName, Speaker] = {
    "chat": ChatSpeaker(),
    "completions": CompletionsSpeaker(),
    "messages": MessagesSpeaker(),
    "responses": ResponsesSpeaker(),
}
"""By API; embeddings are missing, since the engine makes none."""
