"""Where jobs run: who holds which type in this round, and on which devices.

Pure functions of values: a policy says what share of time (or in what order) jobs should hold a type,
the functions here turn that into gangs on devices, for the daemon and for the simulator alike.
"""
