"""The map of every GPU: what Slurm says, what the node says, and who holds what."""

from __future__ import annotations

from pyhetsched.daemon.auth import Caller
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.holdings import Holdings
from pyhetsched.daemon.journal import user_name
from pyhetsched.daemon.pools import Pools
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.model import GpuReport, MigInstance, NodeView, Reservation
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.slurm.hosts import expand
from pyhetsched.slurm.snapshot import gpu_types


class GpuMap:
    """Builds the map from memory; nothing is asked of Slurm or the nodes."""

    def __init__(self, watcher: Watcher, book: Book, holdings: Holdings, pools: Pools) -> None:
        self._pools = pools
        self._watcher = watcher
        self._book = book
        self._holdings = holdings

    def build(self, nodes: str, me: Caller) -> pb.MapReply:
        """Return the map of ``nodes`` (a hostlist, empty for all); raises `RequestError` for a malformed one."""
        wanted = frozenset(expand(nodes))
        view = self._watcher.view
        found = [node for node in view.nodes if node.gpus and (not wanted or node.name in wanted)]
        return pb.MapReply(nodes=[self._node(node, me) for node in found], as_of_s=view.as_of_s)

    def _node(self, node: NodeView, me: Caller) -> pb.NodeGpus:
        report = self._watcher.report(node.name)
        by_index = {gpu.index: gpu for gpu in report.gpus} if report else {}
        mig = self._watcher.mig_gpus(node.name)
        gpus = []
        for index, group in enumerate(gpu_types(node)):
            gpu = by_index.get(index)
            reservations = self._book.on_gpu(node.name, index)
            message = pb.Gpu(
                index=index, gres_type=group.gres_type, model=(gpu.model_key if gpu else group.model_key) or "",
                uuid=gpu.uuid if gpu else "", mig_mode=_mode(gpu, index in mig),
                shards=group.shards_per_gpu if index in mig else 0, minor=gpu.minor if gpu else index,
                memory_mib=gpu.memory_mib if gpu else 0,
                utilization_pct=gpu.utilization_pct if gpu else None, slices=[self._slice(r, me) for r in reservations],
            )  # fmt: skip
            message.slices.extend(map(_foreign, self._book.foreign(node.name, index)))
            self._add_holders(message, node.name, me)
            gpus.append(message)
        return pb.NodeGpus(
            name=node.name, state=node.state, reconciled=report is not None, gpus=gpus,
            reported_s=report.time_s if report else 0.0, pool=self._pools.has(node.name),
            wanted_mode=self._pools.wanted(node.name),
        )  # fmt: skip

    def _add_holders(self, message: pb.Gpu, node: str, me: Caller) -> None:
        for holder in self._holdings.on(node, message.index):
            if holder.shards:
                message.shards_used += holder.shards
            else:
                message.holder = f"{holder.id_text} ({holder.user})" if me.may_see(holder.uid) else "in use"
                message.shards_used = message.shards

    def _slice(self, item: Reservation, me: Caller) -> pb.Slice:
        mine = me.may_see(item.uid)
        return pb.Slice(
            profile=item.profile, start=item.start, size=item.size, uuid=item.mig_uuid, state=item.state.value,
            job_id=item.job_id if mine else 0, user=user_name(item.uid) if mine else "", gi_id=item.gi_id or 0,
            id_text=self._holdings.id_text(item.job_id) if mine else "",
        )  # fmt: skip


def _mode(gpu: GpuReport | None, offers_slices: bool) -> str:
    if gpu is not None:
        return gpu.mig_mode
    return "on" if offers_slices else "unknown"


def _foreign(item: MigInstance) -> pb.Slice:
    return pb.Slice(
        profile=item.profile, start=item.start, size=item.size, uuid=item.mig_uuid, state="foreign", gi_id=item.gi_id
    )
