"""The demonstration model with two tokens for the begin and the end of its reasoning."""

import json
import shutil
from pathlib import Path

from kvproxy.demo import model_path

_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% set thoughts = message.reasoning_content or message.reasoning %}"
    "{% if thoughts %}<think>{{ thoughts }}</think>{% endif %}{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if OPENS %}<think>{% endif %}{% endif %}"
)


def make_thinking_model(folder: Path, opens: str = "thinking is defined and thinking") -> Path:
    """Copy the demonstration model, and replace its last two tokens.

    Args:
        opens: condition under which the chat template begins the reasoning.
    """
    shutil.copytree(model_path(), folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    model = whole["model"]
    names = {number: token for token, number in model["vocab"].items()}
    for number, content in zip(sorted(names)[-2:], ("<think>", "</think>"), strict=True):
        del model["vocab"][names[number]]
        model["merges"] = [merge for merge in model["merges"] if "".join(merge) != names[number]]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        whole["added_tokens"].append({"id": number, "content": content, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "chat_template.jinja").write_text(_TEMPLATE.replace("OPENS", opens))
    return folder


def make_reasoning_end_frequent(folder: Path) -> None:
    """Let the model end its reasoning as often as it generates the word "the"."""
    from safetensors.torch import load_file, save_file

    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    path = folder / "model.safetensors"
    weights = load_file(path)
    embeddings = weights["model.embed_tokens.weight"]
    embeddings[-1] = embeddings[vocabulary["Ġthe"]]
    save_file(weights, path, {"format": "pt"})
