"""The daemon beside slurmctld: it answers the hooks, the nodes and the command line."""
