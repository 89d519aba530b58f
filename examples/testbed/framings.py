"""Ways to ask a benchmark's prompt, so that a few prompts give many requests.

Framings of one prompt are not independent: what is computed over them has to be read as over the prompts, which is
what `beside_core` of tables.py does (its error is over prompts) and what the gate's requests say (../tree).
"""

from __future__ import annotations

FRAMINGS = {
    "": "{}",
    "brief": "{}\n\nBe brief.",
    "steps": "{}\n\nExplain every step.",
    "example": "{}\n\nGive an example, too.",
    "beginner": "{}\n\nAnswer for a beginner.",
}
"""By label; the prompt as it is has none."""
