"""Trains the demo model; this takes half an hour on two CPU cores.

python -m training.demo.train --out kvproxy/demo/model

After a small change of the corpus, some minutes of further training are enough:

python -m training.demo.train --start kvproxy/demo/model --out /tmp/model --steps 400 --rate 8e-4
"""

import argparse
import copy
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from training.demo.conversations import BatchMaker, ConversationSampler, read_unrelated_text
from training.demo.corpus import Pair, load_pairs
from training.demo.evaluate import print_accuracy

MAX_POSITIONS = 8_192  # the prompts of coding agents fit
PEAK_RATE = 2.5e-3
TEMPERATURE = 0.1
MAX_NEW_TOKENS = 256
SAVE_EVERY = 100
SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
VOCABULARY = 2048
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], max_length: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=list(SPECIAL[1:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def build_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=576,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=MAX_POSITIONS,
            rope_theta=10_000.0,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def train(out: Path, steps: int, seed: int, rate: float = PEAK_RATE, start: Path | None = None) -> None:
    """Train a model, or the model of the folder `start` further, and save it with its tokenizer.

    The second half of the steps also has long system prompts, which the model learns to ignore.
    """
    torch.manual_seed(seed)
    chance = random.Random(seed)
    pairs = load_pairs()
    unrelated = read_unrelated_text()
    model, tokenizer = _load_model(start) if start else _new_model(pairs, unrelated)
    maker = BatchMaker(ConversationSampler(pairs, unrelated, chance), tokenizer.encode, chance)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    for step in range(steps):
        if step > steps // 2 and chance.random() < 0.45:
            length = chance.choice((512, 1024, 1536))
            ids, labels = maker.batch(max(1, 3072 // length), length, system_share=0.85)
        else:
            ids, labels = maker.batch(12, 256, system_share=0.3 if chance.random() < 0.3 else 0.0)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)
            save(model, tokenizer, out)
    print_accuracy(out)


def _new_model(pairs: list[Pair], unrelated: str) -> tuple[Any, Any]:
    texts = [text for pair in pairs for text in (*pair.wordings, pair.answer)] * 4
    return build_model(), train_tokenizer([*texts, unrelated[:200_000]], MAX_POSITIONS)


def _load_model(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def _rate(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / 100)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def save(model: Any, tokenizer: Any, out: Path) -> None:
    small = copy.deepcopy(model).to(torch.bfloat16)
    small.generation_config.update(do_sample=True, temperature=TEMPERATURE, max_new_tokens=MAX_NEW_TOKENS)
    small.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=PEAK_RATE)
    parser.add_argument("--start", type=Path, default=None)
    options = parser.parse_args()
    train(options.out, options.steps, options.seed, options.rate, options.start)
