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
    """Return the named backends. `auto` selects the fastest backend that supports the model and the device."""
    reason = varlen_prefill.unsupported_reason(device, dtype, head_dim, has_softcap=has_softcap)
    return AttentionBackends(_prefill(device, prefill, reason), _decode(device, decode))


def _prefill(device: torch.device, name: str, reason: str | None) -> PrefillBackend:
    if name == "sdpa":
        return SdpaPrefill()
    if reason is None:
        return varlen_prefill.VarlenPrefill()
    if name == "auto":
        return SdpaPrefill()
    raise SettingsError(f"engine.prefill_attention = {name} cannot run on {device}: {reason}; use auto or sdpa")


def _decode(device: torch.device, name: str) -> DecodeBackend:
    # Triton's interpreter runs on a CPU, but is thousands of times slower.
    if name == "sdpa" or (name == "auto" and device.type != "cuda"):
        return SdpaDecode()
    reason = triton_decode.unsupported_reason(device)
    if reason is None:
        return triton_decode.TritonDecode()
    if name == "auto":
        return SdpaDecode()
    raise SettingsError(f"engine.decode_attention = {name} cannot run on {device}: {reason}; use auto or sdpa")
