"""The gate of a round, as its own process: measures, forces, promotes and seals; agents only ever hear its answers."""
