"""One to many: serving a request for a larger slice by several small ones, when that starts it sooner.

The idea is that of Flex-MIG (arXiv 2511.09143): many leaves for one job, one rank a leaf, collectives through
host memory because MIG instances have no peer-to-peer. What NCCL does with two leaves of one GPU decides
where leaves may lie: before 2.31 it finds the same host and bus id twice and stops with "Duplicate GPU
detected"; 2.31 with a CUDA 13.0 driver supports it, experimentally (NVIDIA/nccl issue 1716). So leaves lie on
different GPUs unless the declared NCCL, or a site's patched one, allows otherwise. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyhetsched.mig.layout import Layout, Placement, choose_starts
from pyhetsched.mig.profiles import GpuModel, Profile


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


@dataclass(frozen=True, slots=True)
class Leaves:
    """``count`` instances of ``profile`` in place of one larger: at least as much compute and memory in sum."""

    profile: Profile
    count: int


@dataclass(frozen=True, slots=True)
class FlexGpu:
    """One GPU that Slurm could give: where it is, and its layout now."""

    node: str
    index: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class FlexChoice:
    """The leaves chosen, one a rank: for each GPU the placements on it, all on one node."""

    leaves: Leaves
    node: str
    placements: tuple[tuple[int, tuple[Placement, ...]], ...]


def leaves_for(model: GpuModel, asked: Profile) -> tuple[Leaves, ...]:
    """Uniform leaves that can stand for ``asked``, the fewest first; empty if nothing smaller can.

    Together the leaves hold at least the memory slices asked for; each rank sees its own leaf only.
    """
    options = []
    for leaf in model.profiles:
        if leaf.variant or leaf.compute_slices >= asked.compute_slices:
            continue
        count = -(-asked.compute_slices // leaf.compute_slices)
        if count * leaf.size >= asked.size:
            options.append(Leaves(leaf, count))
    return tuple(sorted(options, key=lambda o: (o.count, o.profile.size, o.profile.name)))


def place_leaves(gpus: Sequence[FlexGpu], leaves: Leaves, support: CollectiveSupport) -> FlexChoice | None:
    """Where the leaves can start now on one node, None if nowhere.

    With a library that shares a GPU, GPUs with most room first, so that few GPUs are used; otherwise one leaf
    a GPU. Among nodes the one that uses fewest GPUs.
    """
    best: FlexChoice | None = None
    for node in dict.fromkeys(gpu.node for gpu in gpus):
        choice = _on_node([g for g in gpus if g.node == node], node, leaves, support.shares_a_gpu)
        if choice is not None and (best is None or len(choice.placements) < len(best.placements)):
            best = choice
    return best


def _on_node(gpus: Sequence[FlexGpu], node: str, leaves: Leaves, share: bool) -> FlexChoice | None:
    room = [(_room(gpu.layout, leaves.profile, leaves.count if share else 1), gpu) for gpu in gpus]
    room.sort(key=lambda item: (-len(item[0]), item[1].index))
    placements, left = [], leaves.count
    for starts, gpu in room:
        if left and starts:
            profiles = [leaves.profile] * min(left, len(starts))
            chosen = choose_starts(gpu.layout, profiles) or ()
            placements.append((gpu.index, tuple(map(Placement, profiles, chosen))))
            left -= len(profiles)
    return None if left else FlexChoice(leaves, node, tuple(sorted(placements)))


def _room(layout: Layout, profile: Profile, most: int) -> tuple[int, ...]:
    """Starts for as many of ``profile`` as fit, ``most`` at the most."""
    for count in range(most, 0, -1):
        starts = choose_starts(layout, [profile] * count)
        if starts is not None:
            return starts
    return ()


def starts_sooner(wait_whole_s: float | None, wait_leaves_s: float, run_s: float, slowdown: float) -> bool:
    """Whether leaves finish the job before one slice would.

    ``wait_whole_s`` is the expected wait for the slice as asked, None if no end is in sight; ``slowdown`` is
    the run time on leaves over that on one slice (collectives through host memory), at least 1.
    """
    if wait_whole_s is None:
        return True
    return wait_leaves_s + run_s * slowdown < wait_whole_s + run_s


def decide(
    model: GpuModel,
    asked: Profile,
    gpus: Sequence[FlexGpu],
    support: CollectiveSupport,
    wait_whole_s: float | None,
    run_s: float,
    slowdown: float,
) -> FlexChoice | None:
    """The leaves to start now in place of ``asked``, None to wait for the slice as asked."""
    if not starts_sooner(wait_whole_s, 0.0, run_s, slowdown):
        return None
    for leaves in leaves_for(model, asked):
        choice = place_leaves(gpus, leaves, support)
        if choice is not None:
            return choice
    return None


def rank_environment(uuid: str, on_one_gpu: bool) -> Mapping[str, str]:
    """The variables of one rank: its one instance, and collectives without peer-to-peer.

    ``on_one_gpu`` when ranks of the job share a GPU: then NCCL (from 2.30) must be told that this is meant.
    """
    environment = {
        "CUDA_VISIBLE_DEVICES": uuid,
        "NCCL_P2P_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
    }
    if on_one_gpu:
        environment["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    return environment
