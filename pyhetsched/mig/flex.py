"""One to many: what a collectives library must be able to do before several small slices can stand for a large one.

The idea is that of Flex-MIG (arXiv 2511.09143): many leaves for one job, one rank a leaf, collectives through
host memory because MIG instances have no peer-to-peer. Slurm gives a job shards of one GPU per node, so
leaves on one node share a GPU. NCCL before 2.31 finds the same host and bus id twice there and stops with
"Duplicate GPU detected"; 2.31 with a CUDA 13.0 driver supports it, experimentally (NVIDIA/nccl issue 1716).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveSupport:
    """What the job's collectives library can do; versions as tuples, None where not declared.

    ``patched`` declares a library that takes several instances of one GPU whatever its version.
    """

    nccl: tuple[int, int] | None = None
    cuda_driver: tuple[int, int] | None = None
    patched: bool = False

    @property
    def shares_a_gpu(self) -> bool:
        """Whether two ranks may use two instances of one GPU."""
        if self.patched:
            return True
        return bool(self.nccl and self.cuda_driver and self.nccl >= (2, 31) and self.cuda_driver >= (13, 0))
