"""Scheduling policies: who should hold which GPU type for what share of time."""

from pyhetsched.policies.contract import (
    Allocation,
    ClusterState,
    Diagnostics,
    GpuType,
    Job,
    PairShares,
    PairTable,
)
from pyhetsched.policies.registry import SolverCache, allocate, names, policy, resolve

__all__ = [
    "Allocation",
    "ClusterState",
    "Diagnostics",
    "GpuType",
    "Job",
    "PairShares",
    "PairTable",
    "SolverCache",
    "allocate",
    "names",
    "policy",
    "resolve",
]
