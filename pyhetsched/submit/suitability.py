"""Whether a GPU or a slice satisfies what a job needs; the reason if not."""

from __future__ import annotations

from dataclasses import dataclass

from pyhetsched.errors import RequestError
from pyhetsched.mig.profiles import GpuModel, Profile
from pyhetsched.submit.draft import Wishes
from pyhetsched.submit.fleet import Offer
from pyhetsched.submit.speeds import Speed, speed_of, speed_of_type


@dataclass(frozen=True, slots=True)
class Needs:
    """The least that may serve: nominal gigabytes, compute capability, gres types (empty: any), peak speed."""

    memory_gb: float = 0.0
    cc: tuple[int, int] | None = None
    types: tuple[str, ...] = ()
    speed: Speed | None = None
    speed_of: str = ""

    def why_not(self, offer: Offer, profile: Profile | None = None) -> str:
        """Empty if the offer's GPU, or its slice ``profile``, suffices; else why it does not."""
        if self.types and offer.gres_type not in self.types:
            return f"not one of the types {', '.join(self.types)}"
        if not (self.memory_gb or self.cc or self.speed):
            return ""
        if not offer.models:
            return "which GPU model it is, is not known"
        return next((why for model in offer.models if (why := self._why_not_model(model, profile))), "")

    def _why_not_model(self, model: GpuModel, profile: Profile | None) -> str:
        memory_gb = model.memory_gb if profile is None else profile.memory_gb
        if memory_gb < self.memory_gb:
            return f"{memory_gb} GB are less than {self.memory_gb:g} GB"
        if self.cc is not None and model.compute_capability < self.cc:
            return f"compute capability {_dotted(model.compute_capability)} is below {_dotted(self.cc)}"
        if self.speed is None:
            return ""
        speed = speed_of(model, profile)
        if speed is None:
            return f"its speed beside {self.speed_of} is not known"
        return "" if speed.at_least(self.speed) else f"its peak is below that of {self.speed_of}"


def needs_of(wishes: Wishes, memory_gb: float = 0.0) -> Needs:
    """What ``wishes`` and a ``gpu:NNgb`` ask for together; raises :class:`RequestError` for an unknown type."""
    speed = None
    if wishes.not_slower_than is not None:
        speed = speed_of_type(wishes.not_slower_than)
        if speed is None:
            raise RequestError(
                f"how fast a {wishes.not_slower_than[:40]!r} is, is not known; name a GPU such as not-slower-than=v100"
            )
    least = max(memory_gb, wishes.min_vram_gb or 0.0)
    return Needs(least, wishes.min_cc, wishes.types, speed, wishes.not_slower_than or "")


def _dotted(cc: tuple[int, int]) -> str:
    return f"{cc[0]}.{cc[1]}"
