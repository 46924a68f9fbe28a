"""The `langchain-openai` package: chat and Responses, streams, tools, structured output, and embeddings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.scripts.command_line import print_steps


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    @tool
    def read_file(path: str) -> str:
        """Read a file."""
        return Path(path).read_text()

    for name, options in (("chat", {}), ("responses", {"use_responses_api": True})):
        model: Any = ChatOpenAI(model="gpt-5.1", base_url=f"{url}/v1", api_key="sk-langchain", max_retries=0, **options)
        yield name, model.invoke("The word is salt. Repeat it.").text
        yield f"{name} stream", "".join(part.text for part in model.stream("The word is salt. Repeat it."))
        bound = model.bind_tools([read_file])
        messages: list[Any] = [HumanMessage(f"What is the word in {note}?")]
        for step in range(2):
            answer = bound.invoke(messages)
            messages.append(answer)
            messages += [
                ToolMessage(read_file.invoke(call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls
            ]
            yield f"{name} tools {step}", answer.text or [call["name"] for call in answer.tool_calls]
    embeddings = OpenAIEmbeddings(
        model="text-embedding-3-small", base_url=f"{url}/v1", api_key="sk-langchain", check_embedding_ctx_length=False
    )
    yield "embeddings", [len(each) for each in embeddings.embed_documents(["a", "b"])]


if __name__ == "__main__":
    print_steps(run)
