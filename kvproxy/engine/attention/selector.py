"""Selects the attention backends for a model and a device."""

from dataclasses import dataclass

import torch

from kvproxy.engine.attention import triton_decode, varlen_prefill
from kvproxy.engine.attention.interface import DecodeBackend, PrefillBackend
from kvproxy.engine.attention.sdpa_attention import SdpaDecode, SdpaPrefill
from kvproxy.errors import SettingsError


@dataclass(frozen=True, slots=True)
class AttentionBackends:
    prefill: PrefillBackend
    decode: DecodeBackend


SDPA = AttentionBackends(SdpaPrefill(), SdpaDecode())


def select_backends(
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    *,
    has_softcap: bool = False,
    prefill: str = "auto",
    decode: str = "auto",
) -> AttentionBackends:
    """Return the named backends. `auto` selects the fastest one that supports the model and the device."""
    varlen_reason = varlen_prefill.unsupported_reason(device, dtype, head_dim, has_softcap=has_softcap)
    use_varlen = _use_optional_backend("prefill_attention", prefill, device, varlen_reason)
    # Triton's interpreter runs on a CPU, but is thousands of times slower.
    may_use_triton = decode == "triton" or (decode == "auto" and device.type == "cuda")
    use_triton = may_use_triton and _use_optional_backend(
        "decode_attention", decode, device, triton_decode.unsupported_reason(device)
    )
    return AttentionBackends(
        varlen_prefill.VarlenPrefill() if use_varlen else SdpaPrefill(),
        triton_decode.TritonDecode() if use_triton else SdpaDecode(),
    )


def _use_optional_backend(setting: str, name: str, device: torch.device, unsupported_reason: str | None) -> bool:
    if unsupported_reason is not None and name not in ("auto", "sdpa"):
        raise SettingsError(f"engine.{setting} = {name} cannot run on {device}: {unsupported_reason}; use auto or sdpa")
    return unsupported_reason is None and name != "sdpa"
