"""How long a round takes over many waiting jobs: appraising, the policy, and the updates that come of it.

    python tests/bench/rounds.py [JOBS] [POLICY...]

Loading the jobs from slurmctld and making the updates comes on top (docs/rounds.md).
"""

from __future__ import annotations

import random
import resource
import sys
import time

from pyhetsched.clock import RealClock
from pyhetsched.daemon.modes import ModeTable
from pyhetsched.daemon.round_changes import Picture, changes
from pyhetsched.daemon.round_plan import RoundSettings, plan
from pyhetsched.daemon.round_tables import Tables
from pyhetsched.daemon.round_worth import Appraiser, PastRuns
from pyhetsched.model import ClusterView, GpuGroup, JobAsk, Mode, NodeView, SliceAsk
from pyhetsched.policies.registry import SolverCache
from pyhetsched.slurm.admin_comment import encode
from pyhetsched.slurm.gpu_jobs import GpuJob
from pyhetsched.store.runs import Run

MODELS = {"a100": "A100-80GB", "h100": "H100-80GB-SXM", "v100": "V100-32GB", "a30": "A30-24GB"}


def cluster(nodes: int) -> ClusterView:
    """Nodes of four GPUs, types in turn; a third of the a100s and h100s in MIG mode."""
    made = []
    for number in range(nodes):
        name = tuple(MODELS)[number % 4]
        mig = name in ("a100", "h100") and number % 3 == 0
        group = GpuGroup(name, MODELS[name], 4, mig, 31 if mig else 0)
        features = frozenset({name, "mig" if mig else "whole"})
        made.append(NodeView(f"{name}-{number}", features, (group,), frozenset({"gpu"})))
    return ClusterView(tuple(made))


def queue(count: int, view: ClusterView, stream: random.Random) -> list[GpuJob]:
    """As many waiting jobs of 60 users, a fifth on slices, and running jobs on half the nodes."""
    jobs = []
    for job_id in range(1, count + 1):
        slices = stream.random() < 0.2
        gpus = 0 if slices else stream.choice((1, 1, 1, 2, 4))
        ask = JobAsk("slices", (SliceAsk("1g.10gb", 1),), shards=4) if slices else JobAsk("whole", gpus_per_node=gpus)
        jobs.append(GpuJob(
            job_id, "PENDING", user=f"user{job_id % 60}", name=f"job{stream.randrange(30)}x{job_id}", account="a",
            partitions=("gpu",), gpus=gpus, shards=4 if slices else 0, admin_comment=encode(f"{job_id:016x}", ask),
            limit_s=stream.choice((600.0, 3600.0, 86400.0)), submit_s=float(job_id),
            features="whole" if gpus > 1 else "",
        ))  # fmt: skip
    for number, node in enumerate(view.nodes[::2]):
        jobs.append(GpuJob(count + 1 + number, "RUNNING", user="other", name="r", partitions=("gpu",), gpus=4,
                           nodes=node.name, limit_s=7200.0, run_s=600.0))  # fmt: skip
    return jobs


def main() -> None:
    """Time two rounds of each policy, the second with what the first left to start from."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    names = sys.argv[2:] or ["min-jct", "max-min", "fifo"]
    stream = random.Random(1)
    view = cluster(200)
    jobs = queue(count, view, stream)
    runs = PastRuns(
        Run(n, float(n), f"user{n % 60}", f"job{n % 30}x1", stream.choice(tuple(MODELS)), 1, took_s, 1.0)
        for n, took_s in ((n, stream.uniform(60, 9000)) for n in range(20_000))
    )
    tables, _ = Tables().of(sorted(MODELS), "")
    appraiser = Appraiser(sorted(MODELS), MODELS, tables, runs)
    modes = ModeTable(Mode.ENFORCE, {})
    print(f"{'policy':<12}{'answered':<12}{'round':>9}{'of it solver':>14}{'again':>9}{'diff':>8}{'updates':>9}")
    for name in names:
        cache = SolverCache()
        times, solver_ms = [], []
        for _ in range(2):
            started = time.perf_counter()
            found = plan(jobs, view, appraiser, {}, RoundSettings(name), RealClock(), cache)
            times.append(time.perf_counter() - started)
            solver_ms.append(found.solve_ms)
        started = time.perf_counter()
        made = changes(found, Mode.ENFORCE, modes, Picture({}, {}, {}), 1000)
        differ_s = time.perf_counter() - started
        print(f"{name:<12}{found.policy:<12}{times[0]:>8.2f}s{solver_ms[0] / 1e3:>13.2f}s{times[1]:>8.2f}s"
              f"{differ_s:>7.2f}s{len(made):>9}")  # fmt: skip
    print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
