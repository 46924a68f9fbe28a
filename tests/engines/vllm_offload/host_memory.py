"""vLLM's CPU offloading for vLLM on a CPU: its own scheduler and manager, and a worker that copies between two tensors.

vLLM's worker copies with CUDA or XPU only. The "GPU" of a vLLM on a CPU is host memory, too.
Named by `kv_connector_extra_config`: `{"spec_name": "HostMemorySpec", "spec_module_path": "host_memory"}`.
"""

from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostMemorySpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            self._worker = HostMemoryWorker(kv_caches, self.num_chunks, self.blocks_per_chunk)
        return self._worker


class HostMemoryWorker(OffloadingWorker):
    def __init__(self, caches: CanonicalKVCaches, num_chunks: int, blocks_per_chunk: int) -> None:
        self._blocks = [cache.tensor for cache in caches.tensors]
        self._chunks = [
            torch.zeros((num_chunks, blocks_per_chunk, *blocks.shape[1:]), dtype=blocks.dtype)
            for blocks in self._blocks
        ]
        self._groups = caches.group_data_refs
        self._blocks_per_chunk = blocks_per_chunk
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec.block_ids, to_chunks=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, dst_spec, src_spec.block_ids, to_chunks=False)

    def _copy(self, job_id: int, gpu: GPULoadStoreSpec, chunk_ids: Any, *, to_chunks: bool) -> bool:
        num_blocks = num_chunks = num_bytes = 0
        for group, (size, index) in enumerate(zip(gpu.group_sizes, gpu.block_indices, strict=True)):
            if not size:
                continue
            skipped = index % self._blocks_per_chunk
            for place in range(size):
                chunk, part = divmod(skipped + place, self._blocks_per_chunk)
                for ref in self._groups[group]:
                    block = self._blocks[ref.tensor_idx][int(gpu.block_ids[num_blocks + place])]
                    copy = self._chunks[ref.tensor_idx][int(chunk_ids[num_chunks + chunk]), part]
                    source, target = (block, copy) if to_chunks else (copy, block)
                    target.copy_(source)
                    num_bytes += ref.page_size_bytes
            num_blocks += size
            num_chunks += -(-(skipped + size) // self._blocks_per_chunk)
        self._finished.append(TransferResult(job_id, True, num_bytes, 0.001))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Copies end before `submit_store` and `submit_load` return."""
