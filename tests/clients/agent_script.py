"""The scripted upstream's answers: the next step of an agent that looks up a word in a file.

A script maps a conversation, which is the same for all APIs, to the parts of the answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORD = re.compile(r"[Tt]he word is (\w+)\.")
_PATH = re.compile(r"[\w./~-]*\.txt")
# Names of tools by their purpose, in order of preference, in lower case. Clients: Claude Code, opencode, Codex, SDKs.
_READERS = ("read", "read_file", "view")
_SHELLS = ("bash", "exec_command", "shell_command", "shell", "local_shell", "container.exec")


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


Part = Text | ToolCall


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request in any API.

    Attributes:
        texts: all texts of the system prompt and of the messages, in order.
        question: the last text of the user.
        results: the tools' results after the question.
        tools: JSON schema of the arguments, by name of the tool.
    """

    texts: Sequence[str]
    question: str
    results: Sequence[str]
    tools: Mapping[str, Mapping[str, Any]]


Script = Callable[[Conversation], Sequence[Part]]


def look_up_the_word(conversation: Conversation) -> Sequence[Part]:
    """Read the file that the question names, first with a tool for files, then with a shell; then answer with its word.

    A client without tools has the file in its prompt. A client that edits by SEARCH/REPLACE blocks gets one.
    """
    calls = [
        call
        for names in (_READERS, _SHELLS)
        if (call := _call(conversation, names)) is not None and _PATH.search(conversation.question)
    ]
    if len(conversation.results) < len(calls):
        return [calls[len(conversation.results)]]
    searched = conversation.results or conversation.texts
    found = next((match[1] for text in reversed(searched) if (match := WORD.search(text))), None)
    if found is None:
        return [Text("Yes.")]
    if any(">>>>>>> REPLACE" in text for text in conversation.texts):
        return [Text(f"word.txt\n```\n<<<<<<< SEARCH\n=======\n{found}\n>>>>>>> REPLACE\n```\n")]
    return [Text(f"The word is {found}.")]


def _call(conversation: Conversation, names: Sequence[str]) -> ToolCall | None:
    by_name = {name.lower(): name for name in conversation.tools}
    name = next((by_name[each] for each in names if each in by_name), None)
    if name is None:
        return None
    path = match[0] if (match := _PATH.search(conversation.question)) else "note.txt"
    schema = conversation.tools[name]
    properties = schema.get("properties", {})
    required = schema.get("required", list(properties))
    return ToolCall(name, {each: _argument(each, properties.get(each, {}), path) for each in required})


def _argument(name: str, schema: Mapping[str, Any], path: str) -> Any:
    kind = schema.get("type")
    if name in ("command", "cmd"):
        return ["cat", path] if kind == "array" else f"cat {path}"
    if "path" in name.lower() or name in ("file", "name"):
        return path
    return {"array": [], "boolean": False, "integer": 1, "number": 1}.get(str(kind), "Read the note")
