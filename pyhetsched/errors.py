"""The errors of hetsched.

::

    HetschedError
    ├── ConfigError          the configuration file is wrong
    ├── RequestError         a user's request cannot be understood
    │   └── NeverError       ... or can never be served here
    ├── NotNowError          the request can be served, but not at this moment
    ├── SlurmError           a call into Slurm failed
    ├── MigError             NVML or a MIG layout said no
    │   ├── NvmlCallError    one NVML call failed, with its code
    │   └── LayoutError      a layout or profile is not legal on this GPU
    ├── StoreError           the database failed
    ├── SolverError          a policy's solver failed or ran out of time
    ├── RpcError             the daemon cannot be reached or refused
    │   ├── UnreachableError
    │   └── UntrustedError   somebody answered who is not the daemon
    └── DataError            an input file (trace, table) is malformed
"""


from __future__ import annotations


class HetschedError(Exception):
    """Any failure that hetsched itself reports."""


class ConfigError(HetschedError):
    """The configuration file cannot be used as written."""


class RequestError(HetschedError):
    """A request cannot be understood; the text tells the user what to write instead."""


class NeverError(RequestError):
    """A request can never be served on this cluster; the text names the nearest one that can."""


class NotNowError(HetschedError):
    """A request can be served, but not at this moment; try later or elsewhere."""


class SlurmError(HetschedError):
    """A call into Slurm failed.

    ``call`` is the name of the call, ``errno`` Slurm's error number (0 if unknown).
    """

    def __init__(self, call: str, text: str, errno: int = 0) -> None:
        super().__init__(f"{call}: {text}")
        self.call = call
        self.text = text
        self.errno = errno

    def __reduce__(self) -> tuple[type[SlurmError], tuple[str, str, int]]:
        # Worker processes raise it: without this it could not be read back, which breaks their pool.
        return type(self), (self.call, self.text, self.errno)


class MigError(HetschedError):
    """A MIG operation cannot be done."""


class NvmlCallError(MigError):
    """One NVML call failed with ``code`` (an ``nvmlReturn_t``)."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} (NVML code {code})")
        self.call = call
        self.code = code


class LayoutError(MigError):
    """A profile or layout is not legal on this GPU model."""


class StoreError(HetschedError):
    """The database cannot be read or written."""


class SolverError(HetschedError):
    """A solver found no answer, or not within its time budget."""


class RpcError(HetschedError):
    """The daemon refused, or answered with an error."""


class UnreachableError(RpcError):
    """Nothing answers at the daemon's address."""


class UntrustedError(RpcError):
    """The answer cannot be shown to come from the daemon."""


class DataError(HetschedError):
    """An input file is malformed; the text names file, line and column."""
