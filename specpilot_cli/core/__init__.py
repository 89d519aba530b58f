"""The bottom room: errors and exit codes, paths, clock, console. It imports nothing else of the package."""
