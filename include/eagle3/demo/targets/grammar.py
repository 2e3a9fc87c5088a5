"""A small grammar of reasoning: questions with worked reasoning and an answer. Runs on the GPU host, stdlib only.

The toy targets learn it, and their prompts are drawn from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ivy", "Jack", "Kim", "Leo", "Mia", "Noah", "Olga")
THINGS = (
    "apples", "books", "coins", "cups", "eggs", "flowers", "keys", "letters", "marbles", "nuts", "pens", "shells",
    "stamps", "stones", "tickets", "toys",
)  # fmt: skip
WORDS = (
    "river", "cloud", "stone", "forest", "garden", "window", "bridge", "lamp", "mirror", "paper", "silver", "summer",
    "winter", "market", "harbor", "island", "valley", "candle", "basket", "ladder", "bottle", "hammer", "pencil",
    "rocket", "button", "pocket", "planet", "tiger", "rabbit", "eagle", "dolphin", "spider", "lemon", "cherry",
    "pepper", "butter", "coffee", "violin", "guitar", "drum",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    question: str
    reasoning: str
    answer: str


def _add_steps(a: int, b: int) -> str:
    """Column addition of two numbers of two digits, units first; the sum stays below 100."""
    units = a % 10 + b % 10
    carry = f"Write {units % 10} and carry 1." if units > 9 else f"Write {units} and carry nothing."
    carried = " + 1" if units > 9 else ""
    tens = (a + b) // 10
    return (
        f"Units first: {a % 10} + {b % 10} = {units}. {carry} "
        f"Then the tens: {a // 10} + {b // 10}{carried} = {tens}. Write {tens}. Together this gives {a + b}."
    )


def _two_addends(rng: Random) -> tuple[int, int]:
    a = rng.randint(11, 87)
    return a, rng.randint(11, 98 - a)


def addition(rng: Random) -> Example:
    a, b = _two_addends(rng)
    return Example(f"What is {a} + {b}?", f"I need to add {a} and {b}. {_add_steps(a, b)}", f"The answer is {a + b}.")


def story(rng: Random) -> Example:
    (a, b), name, things = _two_addends(rng), rng.choice(NAMES), rng.choice(THINGS)
    return Example(
        f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        f"{name} starts with {a} {things} and gets {b} more, so I need to add {a} and {b}. {_add_steps(a, b)}",
        f"{name} now has {a + b} {things}.",
    )


def comparison(rng: Random) -> Example:
    a, b = rng.sample(range(10, 100), 2)
    if a // 10 != b // 10:
        larger, smaller = max(a, b) // 10, min(a, b) // 10
        steps = f"The tens are {a // 10} and {b // 10}. They differ, and {larger} is more than {smaller}."
    else:
        larger, smaller = max(a, b) % 10, min(a, b) % 10
        steps = (
            f"The tens are {a // 10} and {b // 10}. They are the same, so I look at the units. "
            f"The units are {a % 10} and {b % 10}, and {larger} is more than {smaller}."
        )
    return Example(
        f"Which number is larger, {a} or {b}?",
        f"I need to compare {a} and {b}. {steps} So {max(a, b)} is larger.",
        f"The larger number is {max(a, b)}.",
    )


def parity(rng: Random) -> Example:
    n = rng.randint(100, 999)
    kind = "odd" if n % 2 else "even"
    return Example(
        f"Is {n} even or odd?",
        f"I need to look at the last digit of {n}. The last digit is {n % 10}. The digit {n % 10} is {kind}, "
        f"so {n} is {kind}.",
        f"The number {n} is {kind}.",
    )


def reversal(rng: Random) -> Example:
    words = rng.sample(WORDS, 4)
    last, third, second, first = reversed(words)
    return Example(
        f"Say these words in reverse order: {', '.join(words)}.",
        f"There are four words. The last word is {last}, so it comes first. Before it stands {third}. "
        f"Before that stands {second}. The first word is {first}, so it comes last.",
        f"In reverse order: {last}, {third}, {second}, {first}.",
    )


def position(rng: Random) -> Example:
    words, index = rng.sample(WORDS, 4), rng.randrange(4)
    ordinal = ("first", "second", "third", "fourth")[index]
    count = ", ".join(f"{number} is {word}" for number, word in enumerate(words, start=1))
    return Example(
        f"What is the {ordinal} word of this list: {', '.join(words)}?",
        f"I count the words of the list: {count}. I need the {ordinal} word, which is number {index + 1}. "
        f"Number {index + 1} is {words[index]}.",
        f"The {ordinal} word is {words[index]}.",
    )


TASKS: tuple[Callable[[Random], Example], ...] = (addition, story, comparison, parity, reversal, position)


def examples(seed: int) -> Iterator[Example]:
    """Endless, the same for the same seed; the tasks take turns."""
    rng = Random(seed)
    while True:
        for task in TASKS:
            yield task(rng)


def distinct_questions(seed: int, count: int) -> list[str]:
    questions: dict[str, None] = {}
    for example in examples(seed):
        questions[example.question] = None
        if len(questions) == count:
            return list(questions)
    raise AssertionError("examples() never ends")
