"""The drafter's candidate lattice and what is proposed from it."""
