"""The embedded engine: its adapter, its source (`src/`, exported as a repository) and its trained checkpoint."""
