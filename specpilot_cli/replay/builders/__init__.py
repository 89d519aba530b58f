"""Draft-tree builders: one file each, all `build(steps, nodes) -> Trees`, some after `fit(steps)`."""
