"""Short everyday questions for a small instruct model: templates times values. Runs on the GPU host, stdlib only."""

from random import Random

COUNTRIES = (
    "France", "Japan", "Brazil", "Egypt", "Canada", "Kenya", "Norway", "India", "Peru", "Greece", "Poland", "Vietnam",
    "Spain", "Mexico", "Turkey", "Chile", "Italy", "Morocco", "Sweden", "Thailand",
)  # fmt: skip
PAIRS = (
    ("a lake", "a sea"), ("a star", "a planet"), ("fog", "smoke"), ("weather", "climate"), ("a frog", "a toad"),
    ("a comet", "a meteor"), ("speed", "acceleration"), ("mass", "weight"), ("heat", "temperature"),
    ("a violin", "a cello"), ("a fruit", "a vegetable"), ("a novel", "a short story"), ("a virus", "a bacterium"),
    ("a crocodile", "an alligator"), ("a circle", "a sphere"), ("a hill", "a mountain"), ("jam", "jelly"),
    ("a square", "a rhombus"), ("a debit card", "a credit card"), ("a moth", "a butterfly"),
)  # fmt: skip
SKILLS = (
    "boil an egg", "make a paper boat", "water a cactus", "tie a shoelace", "clean a window", "plant a tomato",
    "bake bread", "pack a suitcase", "sharpen a pencil", "learn ten new words", "fix a flat bicycle tire",
    "write a thank-you note", "brew green tea", "fold a shirt", "train a puppy to sit", "read a map",
    "remove a coffee stain", "prepare for an exam", "build a snowman", "cook rice",
)  # fmt: skip
CAUSES = (
    "Why is the sky blue?", "Why do leaves change color in autumn?", "Why does ice float on water?",
    "Why do cats purr?", "Why is the sea salty?", "Why do we have seasons?", "Why does the moon change its shape?",
    "Why do birds migrate?", "Why do we dream?", "Why does bread rise?", "Why do metals rust?",
    "Why is exercise good for us?", "Why do bees make honey?", "Why do we need sleep?", "Why do volcanoes erupt?",
    "Why do stars twinkle?", "Why does a rainbow appear after rain?", "Why do onions make us cry?",
    "Why do we yawn?", "Why do magnets attract iron?",
)  # fmt: skip
NAMES = ("Anna", "Tom", "Maria", "Omar", "Lily", "Peter", "Sara", "Ravi")
GOODS = ("apples", "pencils", "books", "tickets", "cookies", "balloons", "stickers", "cups")


def _word_problems(rng: Random, count: int) -> list[str]:
    problems: dict[str, None] = {}
    while len(problems) < count:
        name, goods = rng.choice(NAMES), rng.choice(GOODS)
        a, b, c = rng.randint(12, 60), rng.randint(2, 11), rng.randint(2, 9)
        template = rng.choice(
            (
                "{name} has {a} {goods} and gives away {b}. How many {goods} are left? Explain step by step.",
                "{name} buys {b} boxes with {c} {goods} in each box. How many {goods} is that? Explain step by step.",
                "{name} has {a} {goods}, then buys {b} more and loses {c}. How many {goods} does {name} have now?",
                "A shop sells {goods} for {c} dollars each. How much do {b} {goods} cost? Show your work.",
                "A train travels {a} miles every hour. How far does it travel in {c} hours? Show your work.",
            )
        )
        problems[template.format(name=name, goods=goods, a=a, b=b, c=c)] = None
    return list(problems)


def questions() -> list[str]:
    """280 distinct questions, always the same. The kinds take turns: any stretch of them is a fair sample."""
    kinds = (
        [f"What is the capital of {country}?" for country in COUNTRIES],
        [f"What is the difference between {a} and {b}?" for a, b in PAIRS],
        [f"How do I {skill}? Give me the steps." for skill in SKILLS],
        CAUSES,
        [f"Name three things that {country} is known for." for country in COUNTRIES],
        [f"In two sentences, what should a beginner know before trying to {skill}?" for skill in SKILLS],
        [f"Give one example each of {a} and {b}." for a, b in PAIRS],
    )
    everyday = [question for turn in zip(*kinds, strict=True) for question in turn]
    problems = _word_problems(Random(0), count=len(everyday))
    return [question for pair in zip(everyday, problems, strict=True) for question in pair]
