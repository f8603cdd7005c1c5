"""Reference shares: what a job would get without any policy (Gavel, OSDI'20, sections 4.2 and 4.3)."""

from __future__ import annotations

import numpy as np

from pyhetsched.policies.contract import Allocation, ClusterState, Diagnostics, Floats
from pyhetsched.policies.registry import Context, NoOptions, policy


def equal_shares(state: ClusterState) -> Floats:
    """Return X_eq [M, J] = N_j / sum(N), the same row for every job."""
    total = max(float(state.counts.sum()), 1.0)
    return np.broadcast_to(state.counts / total, (state.n_jobs, state.n_types)).copy()


def isolated_shares(state: ClusterState) -> Floats:
    """Return X_iso [M, J] = (N_j / M) / g_m; rows are scaled to sum 1 only if they exceed 1."""
    if not state.n_jobs:
        return np.zeros((0, state.n_types))
    shares = (state.counts / state.n_jobs)[None, :] / state.gang[:, None]
    scaled: Floats = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    return scaled


def throughput_of(shares: Floats, throughput: Floats) -> Floats:
    """Return thr(m, X) = sum_j T[m, j] X[m, j], [M]."""
    rates: Floats = np.einsum("mj,mj->m", shares, throughput)
    return rates


@policy(
    "isolated",
    summary="every job gets its 1/M part of every GPU type",
    rung="closed form",
    fall_to=("fifo",),
)
def isolated(state: ClusterState, options: NoOptions, context: Context) -> Allocation:
    """Return X_iso; the objective is the smallest ratio of a job's rate to its isolated rate, so 1."""
    shares = isolated_shares(state) * (state.throughput > 0)
    return Allocation(shares, 1.0 if state.n_jobs else 0.0, diagnostics=Diagnostics(solver="closed form"))
