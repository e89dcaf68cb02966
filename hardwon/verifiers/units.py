r"""Units and other words behind a number: cm^2 is not cm, kJ is not J, 3 PM is not 3 AM, 5 million is not 5.

Quantities in units of one dimension are compared after conversion where it is exact: 3 kJ is 3000 J.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction

SHORT_PREFIXES = {"T": 12, "G": 9, "M": 6, "k": 3, "d": -1, "c": -2, "m": -3, "u": -6, "n": -9}
LONG_PREFIXES = {
    "tera": 12,
    "giga": 9,
    "mega": 6,
    "kilo": 3,
    "centi": -2,
    "milli": -3,
    "micro": -6,
    "nano": -9,
}
METRIC = {  # symbol: names; all take prefixes
    "m": "meter metre", "g": "gram gramme", "J": "joule", "W": "watt", "N": "newton", "Pa": "pascal",
    "Hz": "hertz", "V": "volt", "A": "ampere amp", "L": "liter litre", "eV": "electronvolt", "mol": "mole",
    "cal": "calorie", "K": "kelvin", "C": "coulomb", "s": "second sec", "B": "byte", "ohm": "",
}  # fmt: skip
OTHERS: dict[str, tuple[str, Fraction | int, str]] = {  # name: (dimension, factor, aliases)
    "minute": ("s", 60, "min"), "hour": ("s", 3600, "h hr"), "day": ("s", 86400, ""),
    "week": ("s", 604800, ""), "month": ("month", 1, ""), "year": ("month", 12, "yr"),
    "inch": ("inch", 1, "in inche"), "foot": ("inch", 12, "ft feet"), "yard": ("inch", 36, "yd"),
    "mile": ("inch", 63360, "mi"), "ounce": ("ounce", 1, "oz"), "pound": ("ounce", 16, "lb"),
    "ton": ("g", 1000000, "tonne"), "dollar": ("dollar", 1, "usd"), "cent": ("dollar", Fraction(1, 100), ""),
    "euro": ("euro", 1, "eur"), "degree": ("degree", 1, "deg"), "radian": ("radian", 1, "rad"),
    "celsius": ("celsius", 1, ""), "fahrenheit": ("fahrenheit", 1, ""),
}  # fmt: skip
QUALIFIERS = (  # of one list, two different ones contradict each other
    "am pm", "north south east west", "left right", "clockwise counterclockwise", "gain loss profit",
    "more less fewer", "increase decrease", "bc ad",
)  # fmt: skip
MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SPEEDS = {"mph": "mile per hour", "kph": "km per hour", "kmh": "km per hour", "kmph": "km per hour"}
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
POWERED = {"squared": 2, "cubed": 3}
HEDGES = {"not", "maybe", "but", "or", "and", "to", "if", "except"}
WORD_TOKEN = re.compile(r"[A-Za-z]+|/|\^\s*\{?\s*-?\d\s*\}?|\S")


def ten_to(power: int) -> Fraction:
    return Fraction(10**power) if power >= 0 else Fraction(1, 10**-power)


def known_units() -> dict[str, tuple[str, Fraction]]:
    """Every symbol and name: its dimension, and how many of the dimension's own unit it is."""
    known: dict[str, tuple[str, Fraction]] = {}
    for symbol, names in METRIC.items():
        for prefix, power in {"": 0, **SHORT_PREFIXES}.items():
            known[prefix + symbol] = symbol, ten_to(power)
        for prefix, power in {"": 0, **LONG_PREFIXES}.items():
            known |= {prefix + name: (symbol, ten_to(power)) for name in names.split()}
    for name, (dimension, factor, aliases) in OTHERS.items():
        known |= {alias: (dimension, factor * Fraction(1)) for alias in (name, *aliases.split())}
    for words in QUALIFIERS:
        known |= {word: (f"{word} of {words}", Fraction(1)) for word in words.split()}
    return known


UNITS = known_units()
BY_LOWER = {name.lower(): unit for name, unit in reversed(UNITS.items())}


@dataclass(frozen=True)
class Unit:
    """Dimensions with their powers; how many of the base unit; the words million, ... as a factor."""

    dimensions: tuple[tuple[str, int], ...] = ()
    factor: Fraction = Fraction(1)
    magnitude: Fraction = Fraction(1)

    def contradicts(self, other: Unit) -> bool:
        """Both name a unit, and not of one dimension. A missing unit is forgiven."""
        return bool(self.dimensions and other.dimensions) and self.dimensions != other.dimensions

    def scale(self, other: Unit) -> Fraction:
        """What a number in this unit is multiplied by before it is compared with one in `other`."""
        return self.magnitude * (self.factor if other.dimensions else 1)


def unit_of(word: str) -> tuple[str, Fraction] | None:
    for name in (word, word.removesuffix("s")):
        if name in UNITS:
            return UNITS[name]
    for name in (word.lower(), word.lower().removesuffix("s")):
        if len(name) > 1 and name in BY_LOWER:
            return BY_LOWER[name]
    return None


def read_unit(text: str, *, explicit: bool) -> Unit | None:
    r"""The unit that the words after a number name; None where they are no words of a unit.

    Unknown words (12 \text{ ways}) say nothing and are forgiven; `explicit` words stand in \text{...}.
    """
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text, flags=re.IGNORECASE)
    for short, long in SPEEDS.items():
        text = re.sub(rf"\b{short}\b", long, text)
    powers: dict[str, int] = {}
    factor = magnitude = Fraction(1)
    last: tuple[str, Fraction, int] | None = None
    sign, power, unknown = 1, 1, 0
    for token in WORD_TOKEN.findall(text):
        word = token.lower()
        if word in {"per", "/"}:
            sign = -1
        elif word in POWERS:
            power = POWERS[word]
        elif word[0] == "^" or word in POWERED:
            if last is None or word == "^":
                return None
            again = (POWERED.get(word) or int(re.sub(r"[^\d-]", "", word))) - 1
            powers[last[0]] += last[2] * again
            factor *= last[1] ** (last[2] * again)
        elif word in MAGNITUDES:
            magnitude *= ten_to(MAGNITUDES[word])
        elif (unit := unit_of(token)) and (explicit or len(token) > 1):
            last = unit[0], unit[1], sign * power
            powers[unit[0]] = powers.get(unit[0], 0) + sign * power
            factor *= unit[1] ** (sign * power)
            sign = power = 1
        elif not token.isalpha() or word in HEDGES or (not explicit and len(token) < 4):
            return None
        else:
            unknown, sign, power = unknown + 1, 1, 1
    dimensions = tuple(sorted((name, n) for name, n in powers.items() if n))
    return Unit(dimensions, factor, magnitude)


TAIL = re.compile(r"\\text\s*\{|(?<=[\d\s})%])[A-Za-z]{2,}|(?<=[\d)}])\s[A-Za-z]\b")  # where words may begin
DEGREES = re.compile(r"\^\\circ\s*(?:\\text\s*\{)?\s*([CFK]?)\s*\}?$")
TEMPERATURES = {"C": "celsius", "F": "fahrenheit", "K": "K"}


def split_unit(text: str, *, letters: bool = False) -> tuple[str, Unit]:
    r"""What is measured, and its unit: "7", cm^2 for `7 \text{ cm}^2`. With `letters` also `5 m`."""
    if match := re.match(r"\\?\$\s*(?=[\d.\\(-])", text):
        body, unit = split_unit(text[match.end() :])
        return body, unit if unit.dimensions else Unit((("dollar", 1),), magnitude=unit.magnitude)
    if match := DEGREES.search(text):
        return text[: match.start()].strip(), Unit(((TEMPERATURES.get(match[1], "degree"), 1),))
    for match in itertools.islice(TAIL.finditer(text), 4):
        body, words = text[: match.start()].strip(), text[match.start() :]
        plain = re.sub(r"\\text\s*\{([^{}]*)\}|\\cdot", r" \1 ", words)
        explicit = letters or match.group().startswith("\\text")
        found = read_unit(plain, explicit=explicit) if body else None
        if found is not None:
            return body, found
    return text, Unit()
