"""User messages to train on: the beginnings are written here, the target itself writes the rest.

The beginnings have the forms of public benchmarks (a word problem, a function to complete, a function with tests, an
open question); no item of any benchmark is among them, and `Known` drops what comes out too close to one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

NAMES = "Ada Ben Carla Dev Elena Farid Grace Hugo Iris Jamal Kira Leo Mona Nils Olga Pavel Rosa Sam Tara Yusuf".split()
THINGS = (
    "apples books pencils cookies tickets marbles stamps flowers bottles shirts cars chairs eggs coins stickers boxes "
    "pages kilometers hours dollars"
).split()
VERBS = (
    "has {n} {t}. ",
    "buys {n} {t} for ${m} each",
    "wants to save for {n} {t}",
    "sells {n} {t} every day",
    "reads {n} {t} a week",
    "shares {n} {t} with {o}",
    "drives {n} miles",
    "earns ${m} an hour",
)
FUNCTIONS = (
    "count_vowels is_prime merge_lists reverse_words max_gap rotate_left find_pairs sum_digits to_binary unique_items "
    "flatten longest_word median_of gcd_of remove_spaces caesar_shift word_lengths split_even matrix_sum is_sorted "
    "decode_runs top_three rescale_to_unit has_duplicates join_numbers second_smallest parse_time triangle_type "
    "common_prefix chunked running_total nested_depth replace_blanks tuple_to_dict filter_positive days_between"
).split()
TASKS = (
    "find the largest of",
    "check whether a given string",
    "count the number of",
    "remove all",
    "sort a list of tuples by",
    "calculate the area of",
    "convert a given",
    "find the sum of",
    "merge two",
    "replace every",
    "split a list",
    "compute the n-th",
    "find the common elements of",
    "reverse the",
    "extract all",
    "check if the given number is",
    "multiply all",
    "find the minimum",
)
TOPICS = (
    "a small bakery",
    "photosynthesis",
    "the moon",
    "remote work",
    "a job interview",
    "learning to swim",
    "electric cars",
    "a lost letter",
    "healthy food",
    "the Roman Empire",
    "machine learning",
    "gardening",
    "public libraries",
    "a trip to Norway",
    "inflation",
    "sleep",
    "a robot's first day",
    "chess",
    "volcanoes",
    "time management",
)
OPEN = (
    "Write a short story about {t}",
    "Explain {t} to a",
    "What are the main",
    "How does {t}",
    "Give me three tips for",
    "Compose an email about {t}",
    "Compare {t} and",
    "Imagine you are",
    "Summarize the following text:",
    "Write a poem about {t}",
    "Describe the",
    "Why do people",
    "Suppose that",
    "Help me plan",
    "Is it true that",
    "Rewrite the following sentence",
    "What would happen if",
    "List five facts about {t}",
    "Create a table of",
    "Act as a",
    "Solve for x:",
    "If a triangle",
    "What is the probability that",
    "Translate",
    "",
)


def beginning(draw: random.Random) -> str:
    """The start of a user message; four kinds, equally often."""
    kind = draw.randrange(4)
    if kind == 0:
        verb = draw.choice(VERBS).format(
            n=draw.randint(2, 90), m=draw.randint(2, 40), t=draw.choice(THINGS), o=draw.choice(NAMES)
        )
        return f"{draw.choice(NAMES)} {verb}".rstrip()
    if kind == 1:
        name = draw.choice(FUNCTIONS)
        return (
            f"Complete the Python function `{name}` below so that it does what its docstring says. Reply with the "
            f"whole code in one Python code block.\n\n```python\ndef {name}("
        )
    if kind == 2:
        article = draw.choice(("a function", "a python function"))
        return f"Write {article} to {draw.choice(TASKS)}"
    return draw.choice(OPEN).format(t=draw.choice(TOPICS))


def closing(message: str, draw: random.Random) -> str:
    """Finish what the target wrote: close a code block; give some code tasks a test to pass."""
    if message.count("```") % 2:
        return message.rstrip() + "\n```"
    if message.startswith("Write ") and " function to " in message[:30] and draw.random() < 0.5:
        name, values = draw.choice(FUNCTIONS), [str(draw.randint(0, 99)) for _ in range(draw.randint(1, 4))]
        test = f"assert {name}([{', '.join(values)}]) == {draw.randint(0, 99)}"
        task = message.split("\n")[0].rstrip()
        return f"{task}\n\nYour code should pass these tests:\n\n```python\n{test}\n```"
    return message.strip()


class Known:
    """Runs of ten words of held-out prompts. Runs that three prompts share are framing and do not count."""

    def __init__(self, prompts: Iterable[str], size: int = 10) -> None:
        self.size = size
        seen = Counter(run for prompt in prompts for run in self._runs(prompt))
        self._runs_known = {run for run, count in seen.items() if count < 3}

    def _runs(self, text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[i : i + self.size]) for i in range(len(words) - self.size + 1)}

    def holds(self, message: str) -> bool:
        """Whether the message has such a run."""
        return not self._runs_known.isdisjoint(self._runs(message))
