"""Which attention backends compute a step, chosen by device and by name."""

from dataclasses import dataclass

from kvproxy.engine.attention.interface import DecodeBackend, PrefillBackend
from kvproxy.engine.attention.sdpa import SdpaDecode, SdpaPrefill


@dataclass(frozen=True, slots=True)
class Backends:
    """One backend for prompts, one for decoding rows."""

    prefill: PrefillBackend
    decode: DecodeBackend


SDPA = Backends(SdpaPrefill(), SdpaDecode())
