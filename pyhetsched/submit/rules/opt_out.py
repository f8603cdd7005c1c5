"""``opt-out``: the user wants the request left alone."""

from __future__ import annotations

from pyhetsched.errors import RequestError
from pyhetsched.model import JobAsk
from pyhetsched.submit.draft import Draft, Want
from pyhetsched.submit.registry import rule


@rule("opt-out")
def leave_alone(draft: Draft) -> Draft:
    """Settle the draft unchanged; a whole GPU on a card in MIG mode still gets its full-size instance."""
    if not draft.wishes.opt_out or draft.settled:
        return draft
    if not draft.policy.allow_opt_out:
        raise RequestError("opting out of hetsched is not permitted on this cluster; leave out opt-out")
    whole = any(each.want is Want.WHOLE for each in draft.wanted)
    return draft.change(ask=JobAsk("whole") if whole else JobAsk("plain"), became="left alone: opted out", settled=True)
