"""Settings of the embedded engine."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineSettings(BaseModel):
    """The embedded engine and its block pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block_size: int = Field(16, ge=1, description="Tokens in one KV block.")
    num_blocks: int | None = Field(None, ge=2, description="Blocks in the pool; by default sized from kv_memory.")
    kv_memory: float = Field(
        0.5, gt=0, description="Memory of the pool: up to 1 a share of the free device memory, above 1 bytes."
    )
    max_batch_tokens: int = Field(2048, ge=1, description="Most tokens computed in one scheduler step.")
    max_sequences: int = Field(64, ge=1, description="Most sequences computed in one scheduler step.")
    max_model_len: int | None = Field(None, ge=1, description="Longest sequence; by default the model's own limit.")
    device: str = Field("auto", description="Where the model runs: auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of weights and KV; auto is bfloat16 on CUDA, and on a CPU what is measured to be faster at the"
        " first start, of float32 and bfloat16.",
    )
    weights: Literal["plain", "int8"] = Field(
        "plain",
        description="int8 keeps the weights of linear layers in 8 bits, for faster answers to few clients on a CPU; answers"
        " change a little, and the log tells by how much the weights do.",
    )
    lora: dict[str, Path] = Field(
        default_factory=dict, description="Folders of LoRA adapters, by the name that requests give as their model."
    )
    prefill_attention: Literal["auto", "sdpa", "varlen"] = Field(
        "auto", description="What computes prompts: sdpa anywhere, varlen (FlashAttention) in 16 bits on CUDA."
    )
    decode_attention: Literal["auto", "sdpa", "triton"] = Field(
        "auto", description="What computes the tokens of answers: sdpa anywhere, triton (our kernels) on CUDA."
    )
    cuda_graphs: bool = Field(
        True,
        description="Replay steps that compute no prompt as CUDA graphs, which are captured at the start; needs triton.",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads that the model uses; by default OMP_NUM_THREADS, or one for each core.",
    )
    speculate: int = Field(
        0,
        ge=0,
        le=32,
        description="Tokens to guess ahead from the request's own text, in each step; 0 guesses none, and so does strict.",
    )
    strict: bool = Field(
        False,
        description="Compute each sequence alone and in whole batches, so that the logits of a hit equal those of an uncached"
        " run bit for bit, whatever else runs. Slow.",
    )
    policy: Literal["lru", "lfu", "s3fifo", "arc"] = Field(
        "lru", description="Which cached block that nobody uses is evicted first."
    )
    cached_windows: Literal["all", "last"] = Field(
        "last",
        description="What stays cached of layers with a sliding window: all blocks, or the last window of each prompt and of each"
        " beginning that prompts share, as vLLM 0.32 does by default.",
    )
    hash_algorithm: Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"] = Field(
        "sha256_cbor", description="How block hashes are computed; the names are vLLM's."
    )
    kv_events: str | None = Field(
        None, description="Address to publish KV events at, as tcp://127.0.0.1:5557. They hold the tokens of prompts."
    )
    kv_replay: str | None = Field(
        None, description="Address to answer requests for missed events at, as tcp://127.0.0.1:5558."
    )
    kv_topic: str = Field("", description="Topic of the published events.")
    kv_buffer: int = Field(10_000, ge=1, le=100_000, description="Batches of events kept for replay.")
