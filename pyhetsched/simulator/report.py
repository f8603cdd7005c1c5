"""A run, or two side by side, as one HTML page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from pyhetsched.simulator.plots import Line, chart, distribution, scatter
from pyhetsched.simulator.result import Run, summary

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222;background:#fff}
svg{width:100%;max-width:44em;height:auto;font:11px system-ui,sans-serif}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}p.note{color:#555;max-width:44em}
"""

_ROWS = (
    ("jobs", "jobs"), ("avg_jct_h", "average completion time, h"), ("p50_jct_h", "median, h"),
    ("p95_jct_h", "95th percentile, h"), ("p99_jct_h", "99th percentile, h"), ("makespan_h", "makespan, h"),
    ("utilisation", "utilisation"), ("cost_usd", "cost, USD"), ("avg_rho", "average rho"),
    ("p95_rho", "95th percentile of rho"), ("max_rho", "largest rho"), ("preemptions", "preemptions"),
    ("solves", "calls of the policy"), ("solve_ms_median", "median call, ms"),
)  # fmt: skip


def write_report(runs: Sequence[Run], title: str = "hetsched simulate") -> str:
    """Return the page; with two runs of the same trace it also shows who gains and who loses."""
    body = [f"<h1>{html.escape(title)}</h1>", _facts(runs), _table(runs)]
    body += [
        _section(
            "Completion times",
            "Share of jobs that were done within a time after their arrival.",
            chart([distribution(run.policy, run.jct_s() / 3600.0) for run in runs],
                  "completion time, h", "jobs, %", log_x=True),
        ),
        _section("Queue", "Jobs that wait for devices.", chart(
            [Line(run.policy, run.series.time_s / 3600.0, run.series.waiting.astype(float)) for run in runs],
            "time, h", "jobs waiting", steps=True)),
        *(_utilisation(run) for run in runs),
        _section(
            "Fairness",
            "rho = completion time / time the job would have needed on its 1/N part of every type. Above 1, the "
            "job would have been better off with a partition of its own.",
            chart([distribution(run.policy, run.rho()) for run in runs if len(run.rows())],
                  "rho", "jobs, %", log_x=True),
        ),
    ]  # fmt: skip
    if len(runs) == 2:
        body.append(_versus(runs[0], runs[1]))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _section(title: str, note: str, content: str) -> str:
    return f'<h2>{html.escape(title)}</h2><p class="note">{html.escape(note)}</p>{content}'


def _facts(runs: Sequence[Run]) -> str:
    run = runs[0]
    cluster = ", ".join(f"{count} {name}" for name, count in zip(run.type_names, run.counts, strict=True))
    text = f"{len(run.trace)} jobs of {run.trace.source}; {cluster}; {run.rules} rules"
    if run.window:
        text += f"; figures are of jobs {run.window[0]} to {run.window[1] - 1}"
    return f"<p>{html.escape(text)}.</p>"


def _table(runs: Sequence[Run]) -> str:
    figures = [summary(run) for run in runs]
    head = "".join(f"<th>{html.escape(run.policy)}</th>" for run in runs)
    rows = []
    for key, label in _ROWS:
        cells = "".join(f"<td>{_shown(each[key])}</td>" for each in figures)
        rows.append(f"<tr><td>{label}</td>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if isinstance(value, float) else str(value)


def _utilisation(run: Run) -> str:
    hours = run.series.time_s / 3600.0
    lines = [
        Line(name, hours, 100.0 * run.series.busy[:, column] / run.counts[column])
        for column, name in enumerate(run.type_names)
    ]
    plot = chart(lines, "time, h", "devices in use, %", steps=True)
    return _section(f"Utilisation, {run.policy}", "Share of the devices of each type that hold a job.", plot)


def _versus(one: Run, two: Run) -> str:
    both = np.intersect1d(one.rows(), two.rows())
    before = (one.finish_s[both] - one.trace.arrival_s[both]) / 3600.0
    after = (two.finish_s[both] - two.trace.arrival_s[both]) / 3600.0
    gain = int((after < before * 0.99).sum())
    lose = int((after > before * 1.01).sum())
    note = (
        f"Each job's completion time under {one.policy} (across) and {two.policy} (up): {gain} gain by {two.policy}, "
        f"{lose} lose, {len(both) - gain - lose} are within 1 %."
    )
    plot = scatter(before, after, f"{one.policy}, h", f"{two.policy}, h")
    return _section("Who gains, who loses", note, plot + _groups(one, both, before, after, two.policy))


def _groups(run: Run, rows: np.ndarray, before: np.ndarray, after: np.ndarray, name: str) -> str:
    """Mean change by gang size and by length, where most differences lie."""
    lines = []
    for size in np.unique(run.trace.gang[rows]).tolist():
        lines.append((f"{size} GPUs", run.trace.gang[rows] == size))
    best_h = run.trace.best_s[rows] / 3600.0
    edges = (0.0, 1.0, 10.0, 100.0, float("inf"))
    for low, high in zip(edges, edges[1:], strict=False):
        label = f"{low:g} to {high:g} h of work" if high < 1e9 else f"over {low:g} h of work"
        lines.append((label, (best_h >= low) & (best_h < high)))
    cells = "".join(
        f"<tr><td>{html.escape(label)}</td><td>{int(mask.sum())}</td><td>{before[mask].mean():.2f}</td>"
        f"<td>{after[mask].mean():.2f}</td></tr>"
        for label, mask in lines
        if mask.any()
    )
    return f"<table><tr><th>jobs</th><th>number</th><th>mean, h</th><th>{html.escape(name)}, h</th></tr>{cells}</table>"
