"""What is known of GPU models and their MIG profiles when no GPU can be asked.

The tables ship as data (``data/mig_profiles.json``, ``data/whole_gpus.json``; sources and certainty stand
there) and what is unknown stays None. On a node whose MIG mode is on, NVML's own tables take precedence:
:func:`dataclasses.replace` a catalogue entry with them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from pyhetsched.errors import DataError, LayoutError
from pyhetsched.mig.geometry import Geometry, Media, Shape, Space, space_of
from pyhetsched.mig.weights import ShardWeights, exact_weights


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """One GPU instance profile of one model.

    ``gi_profile_const`` goes to nvmlDeviceGetGpuInstanceProfileInfoV, ``gi_profile_id`` to the calls that
    create instances or list placements. ``size`` and ``starts`` are in memory slices. ``memory_mib`` is what
    the instance reports, None where nobody has published it; ``memory_gb`` is the figure in the name.
    ``engines`` are decoders, encoders, JPEG units and optical flow units. ``other_names`` are what other
    driver versions call the profile.
    """

    name: str
    gi_profile_const: int | None
    gi_profile_id: int | None
    compute_slices: int
    size: int
    starts: tuple[int, ...]
    memory_mib: int | None = None
    sm_count: int | None = None
    max_instances: int = 1
    engines: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    graphics: bool = False
    other_names: tuple[str, ...] = ()

    @property
    def memory_slices(self) -> int:
        """Memory slices that an instance occupies (the same as ``size``)."""
        return self.size

    @property
    def memory_gb(self) -> int:
        """The gigabytes in the profile's name."""
        found = re.search(r"\.(\d+)gb", self.name)
        if found is None:
            raise DataError(f"profile name {self.name!r} holds no memory size such as 10gb")
        return int(found[1])

    @property
    def variant(self) -> str:
        """What follows the memory in the name: empty, ``+me``, ``+me.all``, ``-me`` or ``+gfx``."""
        return self.name.partition("gb")[2]

    @property
    def media(self) -> Media:
        """What an instance takes of the media engines."""
        variant = self.variant
        return Media(variant) if variant in ("+me", "+me.all", "-me") else Media.SHARE

    def __hash__(self) -> int:
        return hash((self.name, self.gi_profile_id))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Profile {self.name}>"


@dataclass(frozen=True, slots=True, repr=False)
class GpuModel:
    """One GPU model; one without MIG has no profiles and zero slices.

    ``compute_capability`` is (major, minor). ``memory_mib`` is the card's total as nvidia-smi prints it, None
    where unknown; ``memory_gb`` the nominal size. ``mode_needs_reset`` and ``mode_survives_reboot`` say how
    MIG mode behaves. ``certainty`` tells how sure each group of figures is.
    """

    key: str
    name: str
    gres_type: str
    nvml_names: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    memory_gb: int
    memory_mib: int | None = None
    pci_device_ids: tuple[int, ...] = ()
    total_compute_slices: int = 0
    total_memory_slices: int = 0
    max_gpu_instances: int = 0
    mode_needs_reset: bool | None = None
    mode_survives_reboot: bool | None = None
    min_driver: str | None = None
    profiles: tuple[Profile, ...] = ()
    certainty: tuple[tuple[str, str], ...] = ()

    @property
    def mig_capable(self) -> bool:
        """Whether the model can be cut into instances."""
        return bool(self.profiles)

    @property
    def whole_profile(self) -> Profile:
        """The instance that spans the whole GPU; raises :class:`LayoutError` on a model without MIG."""
        for profile in self.profiles:
            if profile.compute_slices == self.total_compute_slices and not profile.graphics:
                return profile
        raise LayoutError(f"{self.key} has no instance that spans the whole GPU")

    def profile(self, name: str) -> Profile:
        """The profile called ``name`` (any driver's name for it); raises :class:`LayoutError`."""
        for profile in self.profiles:
            if name == profile.name or name in profile.other_names:
                return profile
        there = ", ".join(map(str, self.profiles)) or "none"
        raise LayoutError(f"{self.key} has no profile {name!r}; it has {there}")

    def profile_by_id(self, gi_profile_id: int) -> Profile:
        """The profile with this ``nvmlGpuInstanceProfileInfo.id``; raises :class:`LayoutError`."""
        for profile in self.profiles:
            if profile.gi_profile_id == gi_profile_id:
                return profile
        raise LayoutError(f"{self.key} has no profile with id {gi_profile_id}")

    def __hash__(self) -> int:
        return hash((self.key, len(self.profiles)))

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return f"<GpuModel {self.key}>"

    @property
    def plain_profiles(self) -> tuple[Profile, ...]:
        """For each number of compute slices the profile with the least memory and no variant (1g, 2g, 3g...)."""
        plain = sorted((p for p in self.profiles if not p.variant), key=lambda p: (p.compute_slices, p.size))
        return tuple({p.compute_slices: p for p in reversed(plain)}.values())[::-1]


@functools.lru_cache(maxsize=1)
def catalogue() -> Mapping[str, GpuModel]:
    """All shipped models by key, those with MIG first."""
    models = [_model(entry) for name in ("mig_profiles.json", "whole_gpus.json") for entry in _load(name)]
    return MappingProxyType({model.key: model for model in models})


def mig_models() -> tuple[GpuModel, ...]:
    """The shipped models that can be cut."""
    return tuple(model for model in catalogue().values() if model.mig_capable)


def model_by_key(key: str) -> GpuModel:
    """The model with this key, in any case; raises :class:`LayoutError` naming the keys there are."""
    for known, model in catalogue().items():
        if known.casefold() == key.casefold():
            return model
    raise LayoutError(f"no GPU model {key!r}; known: {', '.join(catalogue())}")


def find_model(nvml_name: str, memory_mib: int | None = None, pci_device_id: int | None = None) -> GpuModel | None:
    """The model of a GPU by what NVML says of it, or None.

    The device name decides; among models of one name (GB200) or a bare name (``H100``) the PCI device id
    (upper 16 bits of ``pciDeviceId``) and then the nearest total memory decide.
    """
    wanted = _tokens(nvml_name)
    exact = [m for m in catalogue().values() if any(_tokens(name) == wanted for name in m.nvml_names)]
    by_pci = [m for m in catalogue().values() if pci_device_id is not None and pci_device_id in m.pci_device_ids]
    for candidates in ([m for m in exact if m in by_pci], exact, by_pci):
        if candidates:
            return _nearest_memory(candidates, memory_mib)
    return None


def models_of_type(gres_type: str, among: Iterable[GpuModel] | None = None) -> tuple[GpuModel, ...]:
    """The models that a gres type such as ``a100`` or ``nvidia_a100_80gb_pcie`` can mean.

    A type means a model if it is the model's own short type, or each of its words occurs in one of the
    model's device names (Slurm's NVML autodetection makes types of device names).
    """
    models = tuple(catalogue().values() if among is None else among)
    lowered = gres_type.casefold()
    own = tuple(m for m in models if lowered in (m.gres_type, m.key.casefold()))
    if own:
        return own
    words = _tokens(gres_type)
    return tuple(m for m in models if words and any(words <= _tokens(n) for n in (*m.nvml_names, m.name)))


@functools.lru_cache(maxsize=256)
def geometry_of(model: GpuModel) -> Geometry:
    """The model's geometry, shapes in the order of its profiles; raises :class:`LayoutError` without MIG."""
    if not model.mig_capable:
        raise LayoutError(f"{model.key} cannot be cut: it has no MIG")
    shapes = tuple(Shape(p.compute_slices, p.size, p.starts, p.media) for p in model.profiles)
    return Geometry(model.total_compute_slices, model.total_memory_slices, shapes)


@functools.lru_cache(maxsize=256)
def space_of_model(model: GpuModel) -> Space:
    """The :class:`Space` of the model's geometry."""
    return space_of(geometry_of(model))


@functools.lru_cache(maxsize=256)
def weights_of(model: GpuModel) -> ShardWeights:
    """The model's exact shard weights, in the order of its profiles."""
    return exact_weights(geometry_of(model))


def shards_per_gpu(model: GpuModel) -> int:
    """How many shards a GPU of this model must have in gres.conf (31 with seven compute slices, 4 with four)."""
    return weights_of(model).shards_per_gpu


def weight(model: GpuModel, profile: Profile | str) -> int:
    """The shards that one instance of ``profile`` costs on ``model``."""
    name = profile if isinstance(profile, str) else profile.name
    return weights_of(model).by_shape[model.profiles.index(model.profile(name))]


def weights_by_name(model: GpuModel) -> dict[str, int]:
    """Profile name to shards, for every profile of the model."""
    return {p.name: n for p, n in zip(model.profiles, weights_of(model).by_shape, strict=True)}


def _load(name: str) -> list[dict[str, Any]]:
    text = resources.files("pyhetsched.mig").joinpath("data", name).read_text(encoding="utf-8")
    models: list[dict[str, Any]] = json.loads(text)["models"]
    return models


def _model(entry: Mapping[str, Any]) -> GpuModel:
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k not in _DERIVED
    }
    major, minor = entry["compute_capability"].split(".")
    return GpuModel(
        **fields,
        compute_capability=(int(major), int(minor)),
        pci_device_ids=tuple(int(text, 16) for text in entry.get("pci_device_ids", ())),
        profiles=tuple(_profile(p) for p in entry.get("profiles", ())),
        certainty=tuple(entry.get("certainty", {}).items()),
    )


_DERIVED = frozenset({"compute_capability", "pci_device_ids", "profiles", "certainty"})


def _profile(entry: Mapping[str, Any]) -> Profile:
    return Profile(**_fields(entry))


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}


def _tokens(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.casefold())) - {"nvidia", "tesla"}


def _nearest_memory(candidates: list[GpuModel], memory_mib: int | None) -> GpuModel:
    if memory_mib is None:
        return candidates[0]
    return min(candidates, key=lambda m: abs((m.memory_mib or m.memory_gb * 1000) - memory_mib))
