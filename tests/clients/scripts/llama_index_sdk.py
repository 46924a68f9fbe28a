"""The `llama-index-llms-openai-like` package: completion, chat, and a stream."""

from collections.abc import Iterator

from tests.clients.scripts.command_line import print_steps


def run(url: str, note: str) -> Iterator[tuple[str, object]]:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model="gpt-4o", api_base=f"{url}/v1", api_key="sk-llama-index", is_chat_model=True, temperature=0, max_retries=0
    )
    yield "complete", llm.complete("The word is salt. Repeat it.").text
    asked = [ChatMessage(role="user", content="The word is pepper. Repeat it.")]
    yield "chat", llm.chat(asked).message.content
    yield "stream", "".join(part.delta or "" for part in llm.stream_chat(asked))


if __name__ == "__main__":
    print_steps(run)
