"""Loads a transformers model, and refuses what prefix blocks cannot serve exactly."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kvproxy.demo import DEMO, checked_model
from kvproxy.engine import attention
from kvproxy.engine.attention.interface import AttentionFeatures
from kvproxy.engine.attention.temperature_tuning import use_batch_positions
from kvproxy.engine.health import describe
from kvproxy.engine.kernels.dtype_choice import fastest_dtype
from kvproxy.engine.kernels.fused_layers import fuse, fuse_norms
from kvproxy.engine.kernels.int8_linear import quantize
from kvproxy.engine.limits import check_sampling
from kvproxy.engine.models.layer_groups import KINDS, LayerGroup, group_layers
from kvproxy.engine.models.lora import LoraManager
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.engine.worker.kv_pool import KVShape
from kvproxy.errors import InvalidRequest, ModelUnsupported
from kvproxy.generation import SamplingParams

_log = logging.getLogger("kvproxy")
_ROPE_REFUSED = {"dynamic", "longrope"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for paged attention, with what the engine must know of it.

    `groups` says which layers share block tables, `needs` what they ask of attention. `sampling` is what its
    `generation_config.json` recommends, for requests that do not say. `adapters` are LoRA adapters.
    """

    name: str
    model: Any
    tokenizer: ChatTokenizer
    shape: KVShape
    groups: tuple[LayerGroup, ...]
    needs: AttentionFeatures
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    sampling: SamplingParams
    adapters: LoraManager | None = None


def load_model(
    name: str, device: str = "auto", dtype: str = "auto", *, weights: str = "plain", remembered: Path | None = None
) -> LoadedModel:
    """Weights, tokenizer and shape of a model.

    Args:
        name: `demo`, a folder, a `.gguf` file, or a Hugging Face id.
        device: auto, cpu, cuda or cuda:N.
        dtype: auto (bfloat16 on CUDA; on a CPU what is fastest there) or a torch name.
        weights: plain or int8; int8 is for a CPU, and makes auto bfloat16.
        remembered: folder that keeps what was measured for auto; without one, auto is float32 on a CPU.

    Raises:
        ModelUnsupported: it cannot be loaded, or its layers cannot share blocks; the message says why.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(checked_model()) if name == DEMO else name
    place = _device(device)
    if weights == "int8" and dtype == "auto":
        dtype = "bfloat16"
    measured = remembered if dtype == "auto" and place.type == "cpu" else None
    kind = getattr(torch, dtype) if dtype != "auto" else torch.float32 if place.type == "cpu" else torch.bfloat16
    attention.register()
    _silence()
    try:
        options = gguf_options(Path(source))
        folder = str(Path(source).parent) if options else source
        # A pickle runs code when it is read.
        safe = {} if options else {"use_safetensors": True}
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind if measured is None else "auto", **options, **safe
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, **{name: options[name] for name in options if name == "gguf_file"}
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        hint = "" if Path(source).exists() else " (no such folder; as a Hugging Face id it must be cached or reachable)"
        raise ModelUnsupported(f"cannot load model {name!r}{hint}: {describe(error)}") from None
    if measured is not None:
        model = model.to(fastest_dtype(model, measured))
    if weights == "int8":
        quantize(model.to(place))
        fuse_norms(model)
    elif place.type == "cpu":
        fuse(model)
    return prepare_model(name, model, tokenizer, place)


def gguf_options(source: Path) -> dict[str, Any]:
    """What transformers needs to read a `.gguf` file, whose weights are brought to the engine's type; nothing for others.

    Raises:
        ModelUnsupported: what reads such files is not installed.
    """
    from importlib.util import find_spec

    if source.suffix.lower() != ".gguf":
        return {}
    if not source.is_file():
        raise ModelUnsupported(f"no file {source}: name a .gguf file that is there")
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise ModelUnsupported(f"a .gguf file needs {' and '.join(missing)}: pip install 'kvproxy[gguf]'")
    from transformers.utils import quantization_config

    config = getattr(quantization_config, "GgufConfig", None)
    return {"gguf_file": source.name, **({"quantization_config": config(dequantize=True)} if config else {})}


def prepare_model(name: str, model: Any, tokenizer: Any, device: torch.device) -> LoadedModel:
    """A loaded transformers model on its device, attention switched to paged.

    Raises:
        ModelUnsupported: its layers cannot share blocks.
    """
    config = model.config.get_text_config()
    reason = unsupported_reason(model, config)
    if reason:
        raise ModelUnsupported(
            f"model {name!r} cannot share prefix blocks: {reason}; serve it elsewhere and use --upstream"
        )
    model.set_attn_implementation(attention.NAME)
    model.to(device).eval()
    use_batch_positions(model)
    heads = config.num_attention_heads
    groups = group_layers(config)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=ChatTokenizer(tokenizer, _eos_ids(model, tokenizer)),
        shape=KVShape(
            layers=max(len(group.layers) for group in groups),
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        ),
        groups=groups,
        needs=AttentionFeatures(
            windows=any(group.kind == "sliding_window" for group in groups),
            caps=bool(getattr(config, "attn_logit_softcapping", None)),
            sinks=any(name.endswith("sinks") for name, _ in model.named_parameters()),
        ),
        max_model_len=getattr(config, "max_position_embeddings", None) or 4096,
        device=device,
        dtype=model.dtype,
        sampling=_recommended(model),
    )


def unsupported_reason(model: Any, config: Any) -> str | None:
    """Why a model's layers cannot share blocks, or None where they can."""
    strange = set(getattr(config, "layer_types", None) or ()) - set(KINDS)
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention does not go through transformers' attention interface"
    if strange:
        return f"it has {', '.join(sorted(strange))} layers"
    if rope := _ROPE_REFUSED & _rope_types(config):
        return f"its {min(rope)} rotary embedding depends on the length of the whole sequence"
    if getattr(config, "v_head_dim", None) or getattr(config, "kv_lora_rank", None):
        return "its keys and values differ in width"
    if getattr(config, "global_head_dim", None) or getattr(config, "num_global_key_value_heads", None):
        return "its layers differ in the width of keys and values"
    if getattr(config, "num_kv_shared_layers", None):
        return "some of its layers read the keys and values of others"
    if getattr(config, "use_bidirectional_attention", None):
        return "its tokens attend to later ones"
    return None


def _rope_types(config: Any) -> set[str]:
    """Kinds of rotary embedding, which may differ between kinds of layers."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))] if isinstance(rope, dict) else []
    return {str(part.get("rope_type") or part.get("type")) for part in parts}


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    named = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = named if isinstance(named, list) else [named, tokenizer.eos_token_id]
    return frozenset(id for id in ids if id is not None)


def _recommended(model: Any) -> SamplingParams:
    """As vLLM's `--generation-config auto` reads it, which leaves `do_sample` aside; values out of range are passed over."""
    config, params = model.generation_config, SamplingParams()
    for name in ("temperature", "top_p", "top_k") if config is not None else ():
        value = getattr(config, name, None)
        if value is None:
            continue
        try:
            given = replace(params, **{name: value})
            check_sampling(given)
        except InvalidRequest as error:
            _log.warning("the model recommends %s = %r, which is not used: %s", name, value, error)
        else:
            params = given
    return params


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelUnsupported(f"no device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ModelUnsupported(f"device {name} was asked for, but torch sees no CUDA device: use --device cpu")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ModelUnsupported(f"device {name} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", index)


def _silence() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
