"""One rule a file; the order of the imports is the order in which they run."""

# isort: off
from pyhetsched.submit.rules import spelling
from pyhetsched.submit.rules import directives
from pyhetsched.submit.rules import opt_out
from pyhetsched.submit.rules import blind
from pyhetsched.submit.rules import hand_shards
from pyhetsched.submit.rules import typos
from pyhetsched.submit.rules import named_slices
from pyhetsched.submit.rules import needs
from pyhetsched.submit.rules import whole_gpus
from pyhetsched.submit.rules import companions
# isort: on

__all__ = [
    "blind",
    "companions",
    "directives",
    "hand_shards",
    "named_slices",
    "needs",
    "opt_out",
    "spelling",
    "typos",
    "whole_gpus",
]
