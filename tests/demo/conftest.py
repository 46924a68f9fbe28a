"""The committed demo model, loaded once."""

from collections.abc import Callable, Iterator

import pytest
import torch

from kvproxy.demo import model_path
from training.demo.evaluate import replies

Chat = Callable[[list[list[dict[str, str]]]], list[str]]


@pytest.fixture(scope="session")
def loaded() -> tuple[object, object]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(model_path())


@pytest.fixture(scope="module")
def chat(loaded: tuple[object, object]) -> Iterator[Chat]:
    threads = torch.get_num_threads()
    # So small a model gains nothing from a second thread, and loses much where another test needs the core.
    torch.set_num_threads(1)
    yield lambda conversations: replies(*loaded, conversations)
    torch.set_num_threads(threads)


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
