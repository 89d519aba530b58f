"""Models behind the round: the Messages API, a recorded conversation, an external program. `make` picks one."""
