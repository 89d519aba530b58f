"""User messages to train on: the beginnings are written here, the target itself writes the rest.

The beginnings have the forms of public benchmarks (a word problem, a function to complete, a function with tests, an
open question); no item of any benchmark is among them, and `Known` drops what comes out too close to one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

NAMES = (
    "Ada Ben Carla Dev Elena Farid Grace Hugo Iris Jamal Kira Leo Mona Nils Olga Pavel Rosa Sam Tara Yusuf Anna Mark "
    "Julia Peter Maria John Emma Lucas Sarah David Nina Omar Lily Jack Sofia Tom"
).split()
THINGS = (
    "apples books pencils cookies tickets marbles stamps flowers bottles shirts cars chairs eggs coins stickers boxes "
    "pages kilometers hours dollars oranges cupcakes toys candles fish trees pizzas cards beads muffins lamps bricks"
).split()
PLACES = "school farm bakery shop library factory zoo theater restaurant garden museum hotel bus park company".split()
PROBLEMS = (
    "{o} has {n} {t}. ",
    "{o} has {n} {t} and {p} has",
    "{o} has {k} times as many {t} as {p}. ",
    "{o} buys {n} {t} for ${m} each",
    "{o} buys {k} {t} at ${m} each and {k} {u}",
    "{o} wants to save for {n} {t}",
    "{o} sells {n} {t} every day",
    "{o} makes ${m} an hour. ",
    "{o} reads {n} pages a day",
    "{o} shares {n} {t} with {p}",
    "{o} drives {n} miles",
    "{o} earns ${m} for every",
    "{o} is {n} years old. ",
    "{o} is {k} years older than {p}. ",
    "{o} bakes {n} {t}. ",
    "{o} needs {n} {t} to",
    "{o} and {p} each",
    "{o}'s {w} has {n} {t}. ",
    "A {w} sells {t} for ${m} each. ",
    "A {w} has {n} {t}. ",
    "There are {n} {t} in a {w}. ",
    "There are {n} students in",
    "In a {w}, there are",
    "Each {w} has {n}",
    "The price of {k} {t} is",
    "If {o} has {n} {t} and",
    "If it takes {n} minutes to",
    "How many {t} does {o} have if",
    "On Monday, {o}",
    "Every day, {o}",
    "Last week, {o}",
    "Half of the {t} in a {w} are",
    "{n}% of the {t} in a {w}",
    "Two {w}s have",
    "{o} walks {k} miles",
    "{o} spends ${m} on {t} and",
    "A train travels",
    "A box of {t} costs ${m}. ",
)
FUNCTIONS = (
    "count_vowels is_prime merge_lists reverse_words max_gap rotate_left find_pairs sum_digits to_binary unique_items "
    "flatten longest_word median_of gcd_of remove_spaces caesar_shift word_lengths split_even matrix_sum is_sorted "
    "decode_runs top_three rescale_to_unit has_duplicates join_numbers second_smallest parse_time triangle_type "
    "common_prefix chunked running_total nested_depth replace_blanks tuple_to_dict filter_positive days_between "
    "count_upper is_balanced sum_of_squares find_missing swap_case first_repeat largest_product odd_positions "
    "digit_product strip_digits sort_by_length remove_repeats closest_pair fibonacci_until is_anagram count_words "
    "multiply_all even_only prime_factors power_of_two shortest_string alternate insert_between max_of_rows"
).split()
ARGUMENTS = (
    "", "numbers", "lst", "text", "n", "s", "arr", "a, b", "x, y", "words", "l: list", "n: int", "s: str",
    "numbers: List[int]", "text: str", "strings: List[str]", "numbers: List[float]", "a: int, b: int", "lst, k",
    "string, n", "grid", "array", "values", "n, k", "word: str", "nums: List[int], target: int",
)  # fmt: skip
DOCS = (
    "",
    "",
    "\n    ",
    "\n    Given a ",
    "\n    You are given a ",
    "Given a ",
    "Write a function that takes ",
    "\n    Return ",
    "Return ",
    "\n    Create a function that ",
    "\n    Check if ",
    " Find ",
    "\n    This function takes ",
    "\n    Given two ",
)
TASKS = (
    "find the largest of",
    "check whether a given string",
    "check whether the given",
    "count the number of",
    "remove all",
    "sort a list of tuples by",
    "sort the given",
    "calculate the area of",
    "convert a given",
    "convert a",
    "find the sum of",
    "find the",
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
    "find the maximum difference between",
    "find whether",
    "get the",
    "remove the first and last",
    "find the volume of",
    "find the perimeter of",
    "print the",
    "add the given",
    "flatten a",
    "find the index of",
    "remove duplicate",
    "find the length of",
)
TOPICS = (
    "a small bakery, photosynthesis, the moon, remote work, a job interview, learning to swim, electric cars, a lost "
    "letter, healthy food, the Roman Empire, machine learning, gardening, public libraries, a trip to Norway, "
    "inflation, sleep, a robot's first day, chess, volcanoes, time management, quantum physics, a haunted house, "
    "climate change, supply and demand, a detective, black holes, DNA, social media, a wedding speech, the French "
    "Revolution, vaccines, plate tectonics, democracy, a family dinner, mental health, a space station, coffee, the "
    "stock market, poverty, a new colleague, jazz music, the water cycle, ancient Egypt, philosophy, a dragon, "
    "personal finance, probability, solar energy, a customer complaint, the immune system, online education, a "
    "football match, ocean life, geometry, artificial intelligence, a mountain village, taxes, a startup, medieval "
    "castles, ethics, a travel blog, bacteria, recycling, a broken friendship, the internet, evolution, leadership, a "
    "movie review, tea, global trade, memory, a science fair, magnets, a birthday party, human rights, gravity, a "
    "superhero, immigration, cooking, the brain, city traffic, a product launch, renewable energy, an old clock, "
    "poetry, the human heart, a school project, wolves, data privacy, a beach holiday, economics, chemistry, a king "
    "and a fool, teamwork, sound waves, a hospital, justice"
).split(", ")
OPEN = (
    "Write a short story about {t}",
    "Write a {t}",
    "Write an essay about {t}",
    "Write a persuasive email about {t}",
    "Write a descriptive paragraph about {t}",
    "Draft a letter about {t}",
    "Explain {t} to a",
    "Explain the concept of {t}",
    "Explain the difference between",
    "What are the main",
    "What are some",
    "What is the relationship between {t} and",
    "What are the advantages and disadvantages of",
    "How does {t}",
    "How do",
    "How can I",
    "Give me three tips for",
    "Compose an email about {t}",
    "Compose a blog post about {t}",
    "Compare {t} and",
    "Discuss {t} and",
    "Describe how {t}",
    "Imagine you are",
    "Imagine that you are writing about {t}. ",
    "Pretend to be",
    "You are a",
    "Please act as",
    "Summarize the following text:",
    "Extract the following information from the text below:",
    "Given the following data,",
    "Read the following paragraph and",
    "Analyze the following",
    "Classify the following",
    "Identify the",
    "Evaluate the following",
    "Edit the following paragraph",
    "Write a poem about {t}",
    "Describe the",
    "Describe a",
    "Why do people",
    "Why is {t}",
    "Suppose that",
    "Suppose you",
    "Help me plan",
    "Is it true that",
    "Can you",
    "Could you write",
    "I want you to",
    "Rewrite the following sentence",
    "What would happen if",
    "List five facts about {t}",
    "Create a table of",
    "Act as a",
    "Solve for x:",
    "If x + y =",
    "If a triangle",
    "Find the area of",
    "What is the value of",
    "What is the probability that",
    "How many",
    "Translate",
    "Implement a",
    "Write a C++ program",
    "Write a Python program to",
    "Develop a Python",
    "Write a simple website",
    "Which of the following",
    "In a certain",
    "Design a",
    "Provide an overview of {t}",
    "Provide insights into",
    "Outline the",
)
FREE = 0.4
"""This share of the open messages has no beginning at all."""
EXAMPLES, ASKED = 0.6, 0.7
"""This share of the docstrings gets examples; of the messages with a question mark, so many end there."""
KINDS = (22, 22, 14, 42)
"""Percent of the messages: word problems, functions to complete, functions with tests, open questions."""


def beginning(draw: random.Random) -> str:
    """The start of a user message."""
    kind = draw.choices(range(4), KINDS)[0]
    if kind == 0:
        one, other = draw.sample(NAMES, 2)
        return draw.choice(PROBLEMS).format(
            n=draw.randint(2, 90), k=draw.randint(2, 9), m=draw.randint(2, 40), t=draw.choice(THINGS),
            u=draw.choice(THINGS), o=one, p=other, w=draw.choice(PLACES),
        ).rstrip()  # fmt: skip
    if kind == 1:
        name, arguments = draw.choice(FUNCTIONS), draw.choice(ARGUMENTS)
        before = "from typing import List\n\n\n" if "List" in arguments else ""
        body = f"{before}def {name}("
        if arguments:
            returned = draw.choice(("", "", " -> int", " -> bool", " -> str")) if ":" in arguments else ""
            quotes = draw.choice(('"""', '"""', "'''"))
            body += f"{arguments}){returned}:\n    {quotes}{draw.choice(DOCS)}".rstrip(" ")
        return (
            f"Complete the Python function `{name}` below so that it does what its docstring says. Reply with the "
            f"whole code in one Python code block.\n\n```python\n{body}"
        )
    if kind == 2:
        article = draw.choice(("a function", "a function", "a python function"))
        return f"Write {article} to {draw.choice(TASKS)}"
    return "" if draw.random() < FREE else draw.choice(OPEN).format(t=draw.choice(TOPICS)).rstrip()


def closing(message: str, draw: random.Random) -> str:
    """Finish what the target wrote: end a docstring and its code block, end a sentence, give code tasks tests."""
    if "does what its docstring says" in message:
        return _finished_code(message, draw)
    if message.startswith("Write ") and " function to " in message[:30] and draw.random() < 0.85:
        task = message.split("\n")[0].rstrip()
        if not task.endswith("."):
            task = (task.rpartition(".")[0] or task) + "."
        tests = "\n".join(_assertions(draw))
        return f"{task}\n\nYour code should pass these tests:\n\n```python\n{tests}\n```"
    if message.count("```") % 2:
        return message.rstrip() + "\n```"
    asked = message.rfind("?")
    return message[: asked + 1].strip() if asked > 20 and draw.random() < ASKED else message.strip()


def _finished_code(message: str, draw: random.Random) -> str:
    """Up to the end of the docstring where there is one, often with examples; the block is closed in any case."""
    frame, fence, code = message.partition("```python\n")
    code = code.split("```")[0].rstrip()
    for quotes in ('"""', "'''"):
        parts = code.split(quotes)
        if len(parts) == 2 or (len(parts) > 2 and parts[1].strip()):
            text = parts[1].rstrip()
            if draw.random() < EXAMPLES:
                text += "\n" + "\n".join(f"    {line}" for line in _examples(code, draw))
            code = f"{parts[0]}{quotes}{text}\n    {quotes}"
            break
    return f"{frame}{fence}{code}\n```"


def _examples(code: str, draw: random.Random) -> list[str]:
    """Lines of a docstring that show made-up calls of the function."""
    name = code.partition("def ")[2].partition("(")[0]
    calls, form = _calls(draw), draw.randrange(4)
    if form == 0:
        return [line for given, result in calls for line in (f">>> {name}({given})", result)]
    head = draw.choice((["Examples:"], ["For example:"], ["", "Example:"], [""]))
    sign = (" == ", " ➞ ", " => ")[form - 1]
    return [*head, *(f"{name}({given}){sign}{result}" for given, result in calls)]


def _assertions(draw: random.Random) -> list[str]:
    """One to three tests of one function."""
    name, equal = draw.choice(FUNCTIONS), draw.choice(("==", " == "))
    return [f"assert {name}({given}){equal}{result}" for given, result in _calls(draw)]


def _calls(draw: random.Random) -> list[tuple[str, str]]:
    """Arguments and results of one to three calls of a function; what they claim is made up."""
    kind, found = draw.randrange(5), []

    def numbers(count: int) -> str:
        return ", ".join(str(draw.randint(-9, 99)) for _ in range(count))

    def word() -> str:
        return draw.choice(TOPICS).split()[-1]

    for _ in range(draw.choice((1, 2, 3, 3))):
        size = draw.randint(2, 5)
        call = [
            (f"[{numbers(size)}]", numbers(1)),
            (f'"{word()}"', draw.choice(("True", "False", f'"{word()}"', str(size)))),
            (numbers(1), draw.choice(("True", "False", numbers(1)))),
            (f"[{numbers(size)}], {numbers(1)}", f"[{numbers(size)}]"),
            (f"[({numbers(2)}), ({numbers(2)})]", f"({numbers(2)})"),
        ][kind]
        found.append(call)
    return found


def ended(text: str) -> str:
    """A text that was cut off, up to its last whole sentence; as it is where there is none."""
    last = max(text.rfind(mark) for mark in (".", "?", "!", "\n"))
    return text[: last + 1] if last > 20 else text


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
