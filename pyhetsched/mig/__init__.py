"""MIG: profiles of the GPU models, layouts as values, slice names, planning, and the driver of NVML.

Nothing here touches a GPU but :mod:`pyhetsched.mig.nvml`; importing the package imports none of its modules.
"""
