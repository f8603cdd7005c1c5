"""Identical jobs made one: jobs that a policy cannot tell apart get the same share.

Throughputs come from a table of job types, so thousands of jobs have a few dozen distinct rows. By
convexity an optimum exists in which equal rows get equal shares, and the central one is of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.policies.contract import ClusterState, Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of identical jobs.

    ``rows`` [K] row numbers of the jobs that can run at all; ``group_of`` [K] their group; ``first`` [G]
    one row number of each group; ``size`` [G]; ``throughput`` [G, J] with 0 where a gang cannot be
    held; ``gang`` [G].
    """

    rows: Ints
    group_of: Ints
    first: Ints
    size: Floats
    throughput: Floats
    gang: Floats

    @property
    def n_groups(self) -> int:
        """Return G."""
        return len(self.first)

    def expand(self, state: ClusterState, shares: Floats) -> Floats:
        """Return [M, J] from shares [G, J] per member; jobs that can run nowhere get 0."""
        full = np.zeros((state.n_jobs, state.n_types))
        full[self.rows] = shares[self.group_of]
        return full


def group_jobs(state: ClusterState, *criteria: Floats | Ints, merge: bool = True) -> Groups:
    """Return groups equal in throughput, gang and every column of ``criteria`` ([M] each).

    ``merge`` False keeps every job apart (for comparison).
    """
    usable = state.usable
    rows = np.flatnonzero(usable.any(axis=1))
    rates = np.where(usable[rows], state.throughput[rows], 0.0)
    columns = [rates, state.gang[rows, None].astype(np.float64)]
    columns += [np.asarray(column, dtype=np.float64)[rows, None] for column in criteria]
    if merge:
        first, group_of = unique_rows(np.concatenate(columns, axis=1))
    else:
        first = group_of = np.arange(len(rows))
    return Groups(
        rows=rows,
        group_of=group_of,
        first=rows[first],
        size=np.bincount(group_of, minlength=len(first)).astype(np.float64),
        throughput=rates[first],
        gang=state.gang[rows[first]].astype(np.float64),
    )


def unique_rows(matrix: Floats) -> tuple[Ints, Ints]:
    """Return (index of the first row of each distinct kind, kind of each row), by exact comparison.

    Kinds are in order of their first appearance.
    """
    if not len(matrix):
        none = np.zeros(0, dtype=np.int64)
        return none, none
    contiguous = np.ascontiguousarray(matrix) + 0.0  # -0.0 and 0.0 must be one kind
    keys = contiguous.view([("", np.void, contiguous.dtype.itemsize * contiguous.shape[1])]).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order].astype(np.int64), rank[inverse].astype(np.int64)
