"""Loads transformers models. A model is rejected if its requests cannot share prefix blocks."""

import logging
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvproxy.apis.codecs.generation import SamplingParams
from kvproxy.demo import DEMO, verified_model_path
from kvproxy.engine.attention import triton_decode
from kvproxy.engine.attention.paged_attention import NAME, patch_query_temperature, register_attention
from kvproxy.engine.models.layer_groups import GROUP_KINDS, LayerGroup, group_layers
from kvproxy.engine.models.linear_layers import pack_linear_layers, quantize_linear_layers
from kvproxy.engine.models.lora import LoraManager
from kvproxy.engine.request_validation import validate_sampling
from kvproxy.engine.step_errors import first_line
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.engine.worker.kv_pool import KVShape
from kvproxy.errors import InvalidRequest, ModelUnsupported
from kvproxy.optional_packages import install_command

_log = logging.getLogger("kvproxy")
_MIN_BFLOAT16_WEIGHTS = 100_000_000  # on a CPU, a model with fewer weights runs faster in float32
_UNSUPPORTED_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    name: str
    model: Any
    tokenizer: ChatTokenizer
    shape: KVShape
    groups: tuple[LayerGroup, ...]
    has_softcap: bool
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    default_sampling_params: SamplingParams
    default_max_tokens: int | None
    adapters: LoraManager | None = None


def load_model(name: str, device: str = "auto", dtype: str = "auto", *, quantization: str = "none") -> LoadedModel:
    """Load a model and its tokenizer. `name` is `demo`, a folder, a `.gguf` file, or a Hugging Face id.

    With `auto`, the dtype is bfloat16 on CUDA, and for large models on CPUs with bfloat16 instructions.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_log

    source = str(verified_model_path()) if name == DEMO else name
    target = _select_device(device)
    if quantization == "int8" and dtype == "auto":
        dtype = "bfloat16"
    register_attention()
    transformers_log.disable_progress_bar()
    transformers_log.set_verbosity_error()
    try:
        options = gguf_options(Path(source))
        folder = str(Path(source).parent) if options else source
        # Pickles can run code.
        safe = {} if options else {"use_safetensors": True}
        torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch_dtype, **options, **safe)
        tokenizer = AutoTokenizer.from_pretrained(folder, **({"gguf_file": options["gguf_file"]} if options else {}))
    except (OSError, ValueError, ImportError, KeyError) as error:
        hint = "" if Path(source).exists() else " (no such folder; as a Hugging Face id it must be cached or reachable)"
        raise ModelUnsupported(f"cannot load model {name!r}{hint}: {first_line(error)}") from None
    if dtype == "auto":
        model = model.to(_fastest_dtype(model, target))
    if quantization == "int8":
        quantize_linear_layers(model.to(target))
    elif target.type == "cpu":
        pack_linear_layers(model)
    return prepare_model(name, model, tokenizer, target)


def gguf_options(source: Path) -> dict[str, Any]:
    if source.suffix.lower() != ".gguf":
        return {}
    if not source.is_file():
        raise ModelUnsupported(f"file not found: {source}")
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise ModelUnsupported(f"a .gguf file needs {' and '.join(missing)}: {install_command('gguf')}")
    from transformers.utils import quantization_config

    config = getattr(quantization_config, "GgufConfig", None)
    return {"gguf_file": source.name, **({"quantization_config": config(dequantize=True)} if config else {})}


def prepare_model(name: str, model: Any, tokenizer: Any, device: torch.device) -> LoadedModel:
    config = model.config.get_text_config()
    reason = unsupported_reason(model, config)
    if reason:
        raise ModelUnsupported(
            f"model {name!r} cannot share prefix blocks: {reason}; serve it elsewhere and use --upstream"
        )
    model.set_attn_implementation(NAME)
    model.to(device).eval()
    if device.type == "cuda" and triton_decode.unsupported_reason(device) is None:
        from kvproxy.engine.models.fused_layers import fuse_layers

        with torch.cuda.device(device):
            fuse_layers(model)
    patch_query_temperature(model)
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
        has_softcap=bool(getattr(config, "attn_logit_softcapping", None)),
        max_model_len=getattr(config, "max_position_embeddings", None) or 4096,
        device=device,
        dtype=model.dtype,
        default_sampling_params=_recommended_sampling(model),
        default_max_tokens=_recommended_max_tokens(model),
    )


def unsupported_reason(model: Any, config: Any) -> str | None:
    unknown = set(getattr(config, "layer_types", None) or ()) - set(GROUP_KINDS)
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention does not go through transformers' attention interface"
    if unknown:
        return f"it has {', '.join(sorted(unknown))} layers"
    if rope := _UNSUPPORTED_ROPE & _rope_types(config):
        return f"its {min(rope)} rotary embedding depends on the length of the whole sequence"
    if getattr(config, "v_head_dim", None) or getattr(config, "kv_lora_rank", None):
        return "its keys and values differ in width"
    if getattr(config, "global_head_dim", None) or getattr(config, "num_global_key_value_heads", None):
        return "its layers differ in the width of keys and values"
    if getattr(config, "num_kv_shared_layers", None):
        return "some layers share keys and values"
    if getattr(config, "use_bidirectional_attention", None):
        return "its tokens attend to later ones"
    return None


def _rope_types(config: Any) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))] if isinstance(rope, dict) else []
    return {str(part.get("rope_type") or part.get("type")) for part in parts}


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    named = getattr(model.generation_config, "eos_token_id", None)
    ids = named if isinstance(named, list) else [named, tokenizer.eos_token_id]
    return frozenset(id for id in ids if id is not None)


def _recommended_sampling(model: Any) -> SamplingParams:
    params = SamplingParams()
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(model.generation_config, name, None)
        if value is not None:
            try:
                given = replace(params, **{name: value})
                validate_sampling(given)
                params = given
            except InvalidRequest as error:
                _log.warning("the model's recommended %s = %r is ignored: %s", name, value, error)
    return params


def _recommended_max_tokens(model: Any) -> int | None:
    value = getattr(model.generation_config, "max_new_tokens", None)
    return value if isinstance(value, int) and value > 0 else None


def _select_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelUnsupported(f"no device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ModelUnsupported(f"no CUDA device for {name}: use --device cpu")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ModelUnsupported(f"no device {name}: torch sees {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", index)


def _fastest_dtype(model: Any, device: torch.device) -> torch.dtype:
    if device.type != "cpu":
        return torch.bfloat16
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    is_large = sum(weights.numel() for weights in model.parameters()) >= _MIN_BFLOAT16_WEIGHTS
    return torch.bfloat16 if is_large and has_instructions else torch.float32
