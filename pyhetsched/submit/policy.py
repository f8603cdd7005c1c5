"""The options of the rules of submit, as the site's configuration file sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SlicesWish = Literal["ok", "only", "no"]


@dataclass(frozen=True, slots=True)
class SubmitPolicy:
    """How the rules may answer.

    ``slices`` holds for requests by need (memory, capability, types) that do not say ``slices=`` themselves.
    ``many_by_need`` is what two or more GPUs per node become when they are asked for by need: ``whole`` cards
    as long as there are any, since slices of one card have no peer-to-peer, or ``slices``. ``allow_cut_whole``
    permits more slices per node than one card holds, cut from cards that the job then owns alone.
    ``announce`` sends the user one line for each rewritten request.
    """

    slices: SlicesWish = "ok"
    many_by_need: Literal["whole", "slices"] = "whole"
    allow_cut_whole: bool = True
    allow_flex: bool = False
    allow_opt_out: bool = True
    announce: bool = True
