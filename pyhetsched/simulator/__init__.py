"""A simulated cluster: the same policies and placement as live, on recorded or drawn work."""
