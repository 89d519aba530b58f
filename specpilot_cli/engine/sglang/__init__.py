"""SGLang 0.5.20 as an engine: stock identity, adapter, teacher-forced scoring. README.md has what was learned."""
