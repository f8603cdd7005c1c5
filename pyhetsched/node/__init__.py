"""What runs on compute nodes: prolog, epilog, boot, and the journal that they share.

Everything is keyed by the Slurm node name, so that several slurmd on one host do not mix. Modules here
import as little as they can: a prolog is a process of its own, and every import delays a job.
"""
