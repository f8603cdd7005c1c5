"""No node is known: whatever needs knowledge of the cluster is refused for now, all else is left to Slurm."""

from __future__ import annotations

from pyhetsched.errors import RequestError
from pyhetsched.model import JobAsk
from pyhetsched.submit.draft import Draft, Want
from pyhetsched.submit.registry import rule


@rule("blind")
def without_a_view(draft: Draft) -> Draft:
    """Settle the draft when the view holds no GPU."""
    if draft.settled or draft.fleet.cluster:
        return draft
    if draft.view.nodes:
        return draft.change(settled=True, ask=_ask(draft))
    for each in draft.wanted:
        if each.want in (Want.SLICE, Want.MEMORY):
            raise RequestError(
                f"the cluster cannot be seen now, so {each} cannot be placed; try again shortly, or ask --gres=gpu:1"
            )
    return draft.change(settled=True, ask=_ask(draft))


def _ask(draft: Draft) -> JobAsk:
    return JobAsk("whole" if any(each.want is Want.WHOLE for each in draft.wanted) else "plain")
