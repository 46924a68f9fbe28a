"""The sections `[engine]` and `[tiers]`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kvproxy.doors import CHUNK_STORES, EVICTION
from kvproxy.settings.section import Bytes, Seconds, Section, ShareOrBytes, part_of


class EngineSettings(Section):
    """The embedded engine and its block pool."""

    block_size: int = Field(default=16, ge=1, description="Tokens in one KV block.")
    num_blocks: int | None = Field(
        default=None, ge=2, description="Blocks in the pool; by default computed from kv_memory."
    )
    kv_memory: ShareOrBytes = Field(
        default=0.5,
        gt=0,
        description="Memory of the pool: a size such as 2GiB, or a share (up to 1) of free device memory.",
    )
    max_num_batched_tokens: int = Field(default=2048, ge=1, description="Maximum tokens per scheduler step.")
    max_num_seqs: int = Field(default=64, ge=1, description="Maximum sequences per scheduler step.")
    max_model_len: int | None = Field(
        default=None, ge=1, description="Maximum tokens of a sequence; by default the model's."
    )
    device: str = Field(default="auto", description="Device of the model: auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number format; auto is bfloat16 on CUDA and for large models on suitable CPUs, else float32.",
    )
    quantization: Literal["none", "int8"] = Field(
        default="none",
        description="int8 stores weights in 8 bits: faster on a CPU with few clients, slightly different responses.",
    )
    lora: dict[str, Path] = Field(default_factory=dict, description="Folders of LoRA adapters by model name.")
    prefill_attention: Literal["auto", "sdpa", "varlen"] = Field(
        default="auto",
        description="Attention kernel of prompts: sdpa anywhere, varlen (FlashAttention) in 16 bits on CUDA.",
    )
    decode_attention: Literal["auto", "sdpa", "triton"] = Field(
        default="auto", description="Attention kernel of decoding: sdpa anywhere, triton on CUDA."
    )
    cuda_graphs: bool = Field(
        default=True, description="Capture decoding steps as CUDA graphs at startup; needs triton."
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; by default OMP_NUM_THREADS, or one per core."
    )
    num_speculative_tokens: int = Field(
        default=0, ge=0, le=32, description="Tokens per step of speculative decoding; 0 disables it."
    )
    batch_invariant: bool = Field(
        default=False, description="Compute the same logits with and without cached blocks, bit for bit. Slow."
    )
    eviction_policy: Annotated[str, part_of(EVICTION)] = Field(
        default="lru",
        description="Eviction policy: lru, s3fifo, a plugin's, or sessions, which evicts the conversation that is least likely"
        " to return soon.",
    )
    cached_windows: Literal["all", "last"] = Field(
        default="last",
        description="Cached blocks of sliding-window layers: all, or the last window of each prompt and shared prefix.",
    )
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        default="sha256_cbor", description="Algorithm of block hashes, named as in vLLM."
    )
    kv_events: str | None = Field(
        default=None, description="Address for KV events, which contain prompt tokens: tcp://127.0.0.1:5557."
    )
    kv_replay: str | None = Field(default=None, description="Address to replay missed KV events at.")
    kv_topic: str = Field(default="", description="Topic of KV events.")
    kv_buffer: int = Field(default=10_000, ge=1, le=100_000, description="Batches of events stored for replay.")


class TierSettings(Section):
    """Storage of KV chunks outside the engine's block pool."""

    host: Bytes | None = Field(default=None, description='Host memory for chunks, such as "4GiB".')
    disk: Path | None = Field(default=None, description="Folder for chunks, which survives restarts.")
    disk_size: Bytes = Field(default=20 * 2**30, description="Maximum size of chunks on disk.")
    # The URL may contain a password.
    redis: str | None = Field(default=None, repr=False, description="URL of a Redis or Valkey server for chunks.")
    redis_timeout: Seconds = Field(default=0.5, gt=0, description="Timeout of Redis.")
    redis_ttl: Seconds | None = Field(default=86_400.0, gt=0, description="Time until a chunk expires in Redis.")
    stores: tuple[Annotated[str, part_of(CHUNK_STORES)], ...] = Field(
        default=(), description="Chunk stores of plugins by name, which are asked after host, disk, and redis."
    )
    chunk_tokens: int = Field(default=256, ge=1, description="Tokens in a chunk, a multiple of engine.block_size.")
    load_timeout: Seconds = Field(
        default=5.0, gt=0, description="Time without progress until a request computes its blocks."
    )

    @property
    def enabled(self) -> bool:
        return bool(self.stores) or any(store is not None for store in (self.host, self.disk, self.redis))
