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

    def deal(self, state: ClusterState, shares: Floats, fastest_first: bool) -> Floats:
        """Return [M, J] from shares [G, J] per member, dealt out within each group: the shortest job has all it can.

        Sums over a group are as with `expand`, so is every objective that adds up over jobs at their rates. Of jobs
        that such an objective cannot tell apart, those with least left to run come first, then the oldest: shares
        of a little each would keep all of them from ending (Schrage 1968, shortest remaining time first). With
        ``fastest_first`` they get the fastest types of the group, else each job the same mix of types.
        """
        rows, group, place = self._in_line(state)
        full = np.zeros((state.n_jobs, state.n_types))
        if not fastest_first:
            total = shares.sum(axis=1)
            part = np.clip((total * self.size)[group] - place, 0.0, 1.0)
            full[rows] = (shares / np.where(total > 0, total, 1.0)[:, None])[group] * part[:, None]
            return full
        fastest = np.argsort(-self.throughput, axis=1, kind="stable")
        # The group's shares laid end to end, fastest type first; a job takes the stretch from its place to the next.
        ends = np.cumsum(np.take_along_axis(shares, fastest, axis=1) * self.size[:, None], axis=1)
        begins = np.concatenate([np.zeros((self.n_groups, 1)), ends[:, :-1]], axis=1)
        got = np.minimum(place[:, None] + 1, ends[group]) - np.maximum(place[:, None], begins[group])
        full[rows[:, None], fastest[group]] = np.maximum(got, 0.0)
        return full

    def _in_line(self, state: ClusterState) -> tuple[Ints, Ints, Ints]:
        """Return [K] rows, groups and places within the group of all jobs, the shortest of each group first."""
        best = np.where(state.usable, state.throughput, 0.0).max(axis=1, initial=0.0)
        left_s = np.where(best > 0, state.remaining / np.where(best > 0, best, 1.0), np.inf)
        rows = self.rows
        order = np.lexsort((state.job_ids[rows], -state.age_s[rows], left_s[rows], self.group_of))
        start = np.concatenate([[0], np.cumsum(self.size)[:-1]]).astype(np.int64)
        group = self.group_of[order]
        return rows[order], group, np.arange(len(rows)) - start[group]


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
