"""Memory entries: what was found once, applied again exactly. Loads, resolves, composes and checks the data room."""
