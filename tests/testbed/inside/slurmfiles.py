"""Writes slurm.conf, gres.conf, cgroup.conf and the users and devices that a cluster file asks for."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from cluster import Cluster, Node

ETC = Path("/etc/slurm")
CONTROLLER = "ctl"

SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={controller}(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
LogTimeFormat=iso8601_ms
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=5
MessageTimeout=30
SlurmdTimeout=300
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1024
GresTypes=gpu,shard
SchedulerType=sched/backfill
SchedulerParameters=requeue_delay=1,nohold_on_prolog_fail,bf_interval=5,batch_sched_delay=0
PrologFlags=Alloc
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightQOS=10000
PriorityWeightJobSize=1000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES={tres}
JobAcctGatherType=jobacct_gather/none
"""


def write_slurm_files(cluster: Cluster, hook_lines: str) -> None:
    """Write /etc/slurm and make the folders and devices it names; hook_lines end slurm.conf."""
    tres = ["gres/gpu", *(f"gres/gpu:{kind}" for kind in cluster.gres_types), "gres/shard"]
    lines = [SLURM_CONF.format(name=cluster.name, controller=CONTROLLER, tres=",".join(tres))]
    lines += [node_line(node) for node in cluster.nodes]
    for part in cluster.partitions:
        default = "YES" if part.default else "NO"
        lines.append(
            f"PartitionName={part.name} Nodes={part.nodes} Default={default} "
            f"MaxTime={part.max_time} State=UP {part.extra}"
        )
    lines += [cluster.slurm_conf, hook_lines]
    (ETC / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (ETC / "gres.conf").write_text("".join(gres_lines(node) for node in cluster.nodes), encoding="utf-8")
    (ETC / "cgroup.conf").write_text("CgroupPlugin=disabled\n", encoding="utf-8")
    for folder in ("/var/spool/slurmctld", "/var/log/slurm", "/run/slurm"):
        make_dir(folder, "slurm")
    for node in cluster.nodes:
        make_dir(f"/var/spool/slurmd/{node.name}", "root")
        make_devices(node)


def node_line(node: Node) -> str:
    """The NodeName line of slurm.conf; all nodes are slurmd processes of this one host."""
    return (
        f"NodeName={node.name} NodeHostname={CONTROLLER} NodeAddr=127.0.0.1 Port={node.port} CPUs={node.cpus} "
        f"Boards=1 SocketsPerBoard=1 CoresPerSocket={node.cpus} ThreadsPerCore=1 "
        f"RealMemory={node.memory_mib} Gres={node.gres} Feature={node.features} State=UNKNOWN"
    )


def gres_lines(node: Node) -> str:
    """The lines of gres.conf for one node."""
    files = f"{node.device_dir}/nvidia[0-{node.gpus - 1}]" if node.gpus > 1 else f"{node.device_dir}/nvidia0"
    text = f"NodeName={node.name} Name=gpu Type={node.gres_type} File={files}\n"
    if node.shards_per_gpu:
        text += f"NodeName={node.name} Name=shard Count={node.gpus * node.shards_per_gpu}\n"
    return text


def make_dir(path: str, owner: str, mode: int = 0o755) -> None:
    """Make a folder with its owner and mode."""
    os.makedirs(path, exist_ok=True)
    shutil.chown(path, owner, owner)
    os.chmod(path, mode)


def make_devices(node: Node) -> None:
    """Character devices in place of /dev/nvidiaN. Number 1:3 is /dev/null's, so opening one is harmless."""
    node.device_dir.mkdir(parents=True, exist_ok=True)
    for index in range(node.gpus):
        path = node.device_dir / f"nvidia{index}"
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.chmod(path, 0o666)


def add_users(cluster: Cluster) -> None:
    """Add the cluster's users to passwd and group, with home folders."""
    entries = {
        "/etc/passwd": "{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n",
        "/etc/group": "{name}:x:{uid}:\n",
        "/etc/shadow": "{name}:*:20000:0:99999:7:::\n",
    }
    for path, entry in entries.items():
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(entry.format(name=user.name, uid=user.uid) for user in cluster.users)
    for user in cluster.users:
        make_dir(f"/home/{user.name}", user.name)
        # Where sbatch of a test lands when it changes to the user's home.
        os.chmod(f"/home/{user.name}", 0o755)


def write_hosts(cluster: Cluster) -> None:
    """Every node name leads to this host."""
    names = " ".join(["localhost", CONTROLLER, *(node.name for node in cluster.nodes)])
    Path("/etc/hosts").write_text(f"127.0.0.1 {names}\n", encoding="utf-8")
