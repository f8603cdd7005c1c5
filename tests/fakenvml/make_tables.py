#!/usr/bin/env python3
"""Write gpu_tables.inc from a MIG profile catalogue in JSON.

    make_tables.py ../../pyhetsched/mig/data/mig_profiles.json > gpu_tables.inc

The catalogue leaves unknown numbers null.  A fake GPU needs a number, so nulls
are filled in proportion to the slices; the README says which models that
concerns.  GPUs without MIG are listed here: they have nothing but a name.
"""

import json
import sys
from typing import Any

# Which board of a catalogue row the fake is, where it is not the first: NVML name, PCI device id.
BOARDS = {"A100-80GB": ("NVIDIA A100 80GB PCIe", 0x20B5)}

# key, NVML name, architecture, compute capability, MiB, PCI device id, SMs
WITHOUT_MIG = [
    ("V100-32GB", "Tesla V100-SXM2-32GB", "Volta", "7.0", 32768, 0x1DB5, 80),
    ("V100-16GB", "Tesla V100-SXM2-16GB", "Volta", "7.0", 16384, 0x1DB1, 80),
    ("P100-16GB", "Tesla P100-PCIE-16GB", "Pascal", "6.0", 16384, 0x15F8, 56),
    ("K80-12GB", "Tesla K80", "Kepler", "3.7", 11441, 0x102D, 13),
    ("T4-16GB", "Tesla T4", "Turing", "7.5", 15360, 0x1EB8, 40),
    ("L40S-48GB", "NVIDIA L40S", "Ada", "8.9", 46068, 0x26B9, 142),
    ("A10-24GB", "NVIDIA A10", "Ampere", "8.6", 23028, 0x2236, 72),
]

# nvmlDeviceArchitecture_t
ARCHITECTURES = {"Kepler": 2, "Pascal": 4, "Volta": 5, "Turing": 6, "Ampere": 7, "Ada": 8, "Hopper": 9,
                 "Blackwell": 10}


def known(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def profile_row(model: dict[str, Any], memory_mib: int, profile: dict[str, Any]) -> str:
    slices, size, starts = profile["compute_slices"], profile["size"], profile["starts"]
    # The catalogue has decoders, encoders, JPEG, OFA; a copy engine a slice is near the truth everywhere.
    engines = [slices] + [known(count, -1) for count in profile["engines"] or [None] * 4]
    numbers = [
        profile["gi_profile_const"],
        profile["gi_profile_id"],
        slices,
        size,
        profile["max_instances"],
        known(profile["sm_count"], slices * 18),
        known(profile["memory_mib"], memory_mib * size // model["total_memory_slices"] // 64 * 64),
    ]
    return (f'    {{ "{profile["name"]}", {listed(numbers)}, {{ {listed(engines)} }}, '
            f"{len(starts)}, {{ {listed(starts)} }} }},")


def symbol(key: str) -> str:
    return "profiles_" + "".join(c if c.isalnum() else "_" for c in key.lower())


def model_row(key: str, name: str, architecture: str, capability: str, memory_mib: int, pci: int,
              sm_count: int, slices: str, flags: str, profiles: str) -> str:
    major, minor = capability.split(".")
    code = ARCHITECTURES[architecture.split(maxsplit=1)[0]]
    return (f'    {{ "{key}", "{name}", {code}, {major}, {minor}, {memory_mib}, 0x{pci:04X}, {sm_count}, '
            f"{slices}, {flags}, {profiles} }},")


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        models = json.load(file)["models"]
    rows = []
    print("/* Written by make_tables.py from mig_profiles.json: do not edit. */")
    for model in models:
        key = model["key"]
        name, pci = BOARDS.get(key, (model["nvml_names"][0], int(model["pci_device_ids"][0], 16)))
        memory_mib = known(model["memory_mib"], model["memory_gb"] * 1000)
        print(f"static const gi_profile_t {symbol(key)}[] = {{")
        for profile in model["profiles"]:
            print(profile_row(model, memory_mib, profile))
        print("};")
        full = max(model["profiles"], key=lambda p: (p["compute_slices"], -p["gi_profile_const"]))
        slices = f'{model["total_compute_slices"]}, {model["total_memory_slices"]}, {model["max_gpu_instances"]}'
        flags = f'{int(model["mode_needs_reset"])}, {int(model["mode_survives_reboot"])}'
        rows.append(model_row(key, name, model["architecture"], model["compute_capability"], memory_mib, pci,
                              known(full["sm_count"], full["compute_slices"] * 18), slices, flags,
                              f'{len(model["profiles"])}, {symbol(key)}'))
    for key, name, architecture, capability, memory_mib, pci, sm_count in WITHOUT_MIG:
        rows.append(model_row(key, name, architecture, capability, memory_mib, pci, sm_count, "0, 0, 0", "0, 0",
                              "0, NULL"))
    print("static const gpu_model_t models[] = {")
    print("\n".join(rows))
    print("};")


if __name__ == "__main__":
    main()
