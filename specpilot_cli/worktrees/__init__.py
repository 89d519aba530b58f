"""git repositories of engines: identities, patches as bytes, worktrees. The only room that runs git."""
