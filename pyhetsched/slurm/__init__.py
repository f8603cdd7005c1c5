"""Everything that concerns Slurm itself: its grammars, reading its state, and changing it.

Importing this package does not import pyslurm.
"""
