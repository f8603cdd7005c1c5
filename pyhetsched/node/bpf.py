"""The bpf(2) calls that device rules need, by ctypes: nothing else of libbpf would be used.

Layouts are those of include/uapi/linux/bpf.h, stable since Linux 4.15. All calls raise `OSError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from dataclasses import dataclass, field

BYTE_ORDER = sys.byteorder
MAP_LOOKUP_ELEM = 1
GET_CURRENT_UID_GID = 15
GET_CURRENT_ANCESTOR_CGROUP_ID = 123  # for programs of this type since Linux 6.1

_MAP_CREATE, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 0, 2, 3, 5, 8, 9
_PROG_FD_BY_ID, _MAP_FD_BY_ID, _INFO_BY_FD, _PROG_QUERY = 13, 14, 15, 16
_HASH = 1
_CGROUP_DEVICE = 6  # as attach type
_PROG_TYPE_CGROUP_DEVICE = 15
_ALLOW_MULTI = 2
_SYSCALLS = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
_ATTR_BYTES = 144
_MOST_PROGRAMS = 64


class Assembly:
    """Instructions with labels to jump to."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int, int, str]] = []
        self._labels: dict[str, int] = {}

    def add(self, op: int, *, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0, to: str = "") -> None:
        """Append one instruction; ``to`` is the label of a jump."""
        self._code.append((op, dst, src, off, imm, to))

    def label(self, name: str) -> None:
        """Name the place of the next instruction."""
        self._labels[name] = len(self._code)

    def assemble(self) -> bytes:
        """Return the program, 8 bytes an instruction."""
        text = b""
        for at, (op, dst, src, off, imm, to) in enumerate(self._code):
            registers = src << 4 | dst if BYTE_ORDER == "little" else dst << 4 | src
            text += struct.pack("=BBhi", op, registers, self._labels[to] - at - 1 if to else off, imm)
        return text


@dataclass(slots=True)
class Attached:
    """A program found on a cgroup: its name, and open descriptors of it and of its maps."""

    name: str
    descriptor: int
    maps: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Close the descriptors; the program stays attached."""
        for descriptor in (self.descriptor, *self.maps):
            os.close(descriptor)


def create_hash(key_size: int, value_size: int, entries: int, name: str) -> int:
    """Create a hash map and return its descriptor."""
    with contextlib.suppress(OSError, ValueError):  # before Linux 5.11 maps count as locked memory
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return _bpf(_MAP_CREATE, struct.pack("=7I16s", _HASH, key_size, value_size, entries, 0, 0, 0, _name(name)))


def update(descriptor: int, key: bytes, value: bytes) -> None:
    """Set an element of a map."""
    where, what = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, len(value))
    _bpf(_MAP_UPDATE, struct.pack("=IIQQQ", descriptor, 0, ctypes.addressof(where), ctypes.addressof(what), 0))


def delete(descriptor: int, key: bytes) -> None:
    """Remove an element of a map, if it is there."""
    where = ctypes.create_string_buffer(key, len(key))
    with contextlib.suppress(FileNotFoundError):
        _bpf(_MAP_DELETE, struct.pack("=IIQQQ", descriptor, 0, ctypes.addressof(where), 0, 0))


def load_device_program(text: bytes, name: str) -> int:
    """Load a program of type BPF_PROG_TYPE_CGROUP_DEVICE and return its descriptor."""
    code, terms = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "=IIQQIIQII16s",
        *(_PROG_TYPE_CGROUP_DEVICE, len(text) // 8, ctypes.addressof(code), ctypes.addressof(terms)),
        *(0, 0, 0, 0, 0, _name(name)),
    )
    return _bpf(_PROG_LOAD, attributes)


def attach(cgroup: int, descriptor: int) -> None:
    """Attach a program to a cgroup beside whatever is there and below; it stays until the cgroup goes."""
    _bpf(_PROG_ATTACH, struct.pack("=IIII", cgroup, descriptor, _CGROUP_DEVICE, _ALLOW_MULTI))


def detach(cgroup: int, descriptor: int) -> None:
    """Detach a program from a cgroup."""
    _bpf(_PROG_DETACH, struct.pack("=IIII", cgroup, descriptor, _CGROUP_DEVICE, 0))


def attached_device_programs(cgroup: int) -> list[Attached]:
    """Return the device programs on a cgroup itself (not those above it); the caller closes them."""
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    query = struct.pack("=IIIIQI", cgroup, _CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS)
    buffer = ctypes.create_string_buffer(query, _ATTR_BYTES)
    _call(_PROG_QUERY, buffer)
    count = struct.unpack_from("=I", buffer.raw, 24)[0]
    return [_opened(ids[at]) for at in range(count)]


def _opened(program: int) -> Attached:
    found = Attached("", _bpf(_PROG_FD_BY_ID, struct.pack("=I", program)))
    ids = (ctypes.c_uint32 * 8)()
    # struct bpf_prog_info: nr_map_ids at 52, map_ids at 56, name at 64
    info = ctypes.create_string_buffer(struct.pack("=52xIQ", len(ids), ctypes.addressof(ids)), 128)
    _bpf(_INFO_BY_FD, struct.pack("=IIQ", found.descriptor, len(info), ctypes.addressof(info)))
    found.name = info.raw[64:80].rstrip(b"\0").decode()
    for at in range(struct.unpack_from("=I", info.raw, 52)[0]):
        found.maps.append(_bpf(_MAP_FD_BY_ID, struct.pack("=I", ids[at])))
    return found


def _name(text: str) -> bytes:
    return text.encode()[:15]


def _bpf(command: int, attributes: bytes) -> int:
    return _call(command, ctypes.create_string_buffer(attributes, _ATTR_BYTES))


def _call(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known for {platform.machine()}")
    library = ctypes.CDLL(None, use_errno=True)
    result = int(library.syscall(number, command, attributes, len(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf command {command}: {os.strerror(code)}")
    return result
