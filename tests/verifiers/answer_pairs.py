r"""Pairs of answers whose verdict is known: values written in many forms, equal ones and others.

`pairs(seed)` is endless. A pair holds what a value is (a tuple of exact numbers) in no place but the
generator: both texts come from values, so "right" is the equality of the values and nobody's judgement.
Nothing of the verifier is imported here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

Write = Callable[[random.Random, object], str]


@dataclass(frozen=True)
class Pair:
    kind: str
    gold: str
    answer: str
    right: bool


@dataclass(frozen=True)
class Kind:
    """How a value of a kind is drawn, written in one of its forms, and changed into another value."""

    draw: Callable[[random.Random], object]
    write: Write
    change: Callable[[random.Random, object], object]


def pairs(seed: int) -> Iterator[Pair]:
    """The kinds in turn; half of the pairs are equal. The gold text is one form, the answer another draw."""
    rng = random.Random(f"answer pairs/{seed}")
    while True:
        for name, kind in KINDS.items():
            value = kind.draw(rng)
            right = rng.random() < 0.5
            other = value if right else kind.change(rng, value)
            yield Pair(name, kind.write(rng, value), decorated(rng, kind.write(rng, other)), right)


def decorated(rng: random.Random, text: str) -> str:
    """What models put around an answer without changing it."""
    return rng.choice(["{}", "{}", "{}", " {} ", "${}$", "{}.", r"\displaystyle {}", r"\({}\)"]).format(text)


def sign(text: str, negative: bool) -> str:
    return f"-{text}" if negative else text


# ------------------------------------------------------------------------------------------- numbers


def draw_integer(rng: random.Random) -> int:
    return rng.choice([-1, 1, 1]) * rng.randrange(10 ** rng.randint(1, 12))


def write_integer(rng: random.Random, value: object) -> str:
    assert isinstance(value, int)
    digits = f"{abs(value):,}"
    forms = [
        str(abs(value)),
        digits,
        digits.replace(",", "{,}"),
        digits.replace(",", r"\,"),
        digits.replace(",", r",\!"),
        f"{abs(value)}.0",
        f"x = {sign(str(abs(value)), value < 0)}",
    ]
    text = rng.choice(forms)
    if text.startswith("x"):
        return text
    return sign(text, value < 0) if rng.random() < 0.8 else sign(text, value < 0).replace("-", "−")


def change_integer(rng: random.Random, value: object) -> int:
    assert isinstance(value, int)
    others = [value + 1, value - 1, value + rng.randint(2, 99), value * 10, -value, value * 1000]
    return rng.choice([other for other in others if other != value])


def draw_decimal(rng: random.Random) -> Decimal:
    """At most five places: from six on, a gold decimal stands for what rounds to it."""
    return Decimal(rng.choice([-1, 1]) * rng.randint(1, 10**6)).scaleb(-rng.randint(1, 5))


def write_decimal(rng: random.Random, value: object) -> str:
    assert isinstance(value, Decimal)
    plain = f"{value:f}"
    places = plain.partition(".")[2]
    forms = [
        plain,
        plain + "0",
        write_fraction(rng, Fraction(value)),
        plain.replace(".", "{,}") if len(places) != 3 else plain,
    ]
    if plain.lstrip("-").startswith("0."):
        forms.append(plain.replace("0.", ".", 1))
    return rng.choice(forms)


def change_decimal(rng: random.Random, value: object) -> Decimal:
    assert isinstance(value, Decimal)
    step = Decimal(1).scaleb(value.as_tuple().exponent)  # type: ignore[arg-type]
    return rng.choice([value + step, value - step / 10, value * 10, -value, value + step / 1000])


def write_scientific(rng: random.Random, value: object) -> str:
    assert isinstance(value, Decimal)
    mantissa, exponent = value.normalize().as_tuple().digits, value.adjusted()
    digits = "".join(map(str, mantissa))
    head = sign(digits[0] + ("." + digits[1:] if digits[1:] else ""), value < 0)
    forms = [
        f"{head}e{exponent}",
        f"{head}E{exponent:+03d}",
        rf"{head} \times 10^{{{exponent}}}",
        rf"{head} \cdot 10^{{{exponent}}}",
        f"{head} × 10^{{{exponent}}}",
        f"{head}*10^{exponent}",
        f"{value:f}",
        f"{head} × 10{str(exponent).translate(RAISED)}",
    ]
    return rng.choice(forms)


RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def draw_scientific(rng: random.Random) -> Decimal:
    return Decimal(rng.choice([-1, 1, 1]) * rng.randint(1, 9999)).scaleb(rng.randint(-14, 14))


def change_scientific(rng: random.Random, value: object) -> Decimal:
    assert isinstance(value, Decimal)
    return rng.choice([value.scaleb(1), value.scaleb(-1), -value, value * 2, value * Decimal("1.01")])


def draw_fraction(rng: random.Random) -> Fraction:
    while True:
        value = Fraction(rng.randint(-300, 300), rng.randint(2, 120))
        if value.denominator > 1:
            return value


def write_fraction(rng: random.Random, value: object) -> str:
    assert isinstance(value, Fraction)
    above, below = abs(value.numerator), value.denominator
    times = rng.choice([1, 1, 2, 3, 10])
    forms = [
        rf"\frac{{{above}}}{{{below}}}",
        rf"\dfrac{{{above}}}{{{below}}}",
        f"{above}/{below}",
        rf"\frac{{{times * above}}}{{{times * below}}}",
        rf"\left(\frac{{{above}}}{{{below}}}\right)",
        rf"{above} \div {below}",
        rf"\tfrac{{{above}}}{{{below}}}",
    ]
    if above < 10 and below < 10:
        forms.append(rf"\frac{above}{below}" if above else forms[0])
        forms.append(rf"\frac {above} {below}")
    text = sign(rng.choice(forms), value < 0)
    if value < 0 and rng.random() < 0.2:
        return rf"\frac{{-{above}}}{{{below}}}"
    return VULGAR.get(text, text) if rng.random() < 0.5 else text


VULGAR = {"1/2": "½", "1/4": "¼", "3/4": "¾", "1/3": "⅓", "2/3": "⅔", "1/8": "⅛"}


def change_fraction(rng: random.Random, value: object) -> Fraction:
    assert isinstance(value, Fraction)
    others = [
        value + 1,
        -value,
        1 / value,
        value + Fraction(1, 10**5),
        Fraction(value.numerator + 1, value.denominator),
    ]
    return rng.choice([other for other in others if other != value])


def draw_mixed(rng: random.Random) -> Fraction:
    below = rng.randint(2, 30)
    return rng.choice([-1, 1]) * (rng.randint(1, 40) + Fraction(rng.randint(1, below - 1), below))


def write_mixed(rng: random.Random, value: object) -> str:
    assert isinstance(value, Fraction)
    whole, rest = divmod(abs(value), 1)
    if not rest or not whole:
        return write_fraction(rng, value) if rest else str(value)
    above, below = rest.numerator, rest.denominator
    forms = [
        rf"{whole}\frac{{{above}}}{{{below}}}",
        rf"{whole} \dfrac{{{above}}}{{{below}}}",
        f"{whole} {above}/{below}",
        rf"{whole} + \frac{{{above}}}{{{below}}}" if value > 0 else f"{whole} {above}/{below}",
    ]
    return rng.choice([sign(rng.choice(forms), value < 0), write_fraction(rng, value)])


def draw_complex(rng: random.Random) -> tuple[Fraction, Fraction]:
    return Fraction(rng.randint(-20, 20)), Fraction(
        rng.choice([-1, 1]) * rng.randint(1, 40), rng.choice([1, 1, 2, 4])
    )


def write_complex(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    real, imaginary = value
    size = abs(imaginary)
    unit = "" if size == 1 and rng.random() < 0.7 else rng.choice([plain_number(rng, size), f"{float(size)}"])
    both = sign(f"{unit}i", imaginary < 0)
    if not real:
        return both
    first = rng.choice([plain_number(rng, real), f"{float(real)}"])
    forms = [
        f"{first} {'-' if imaginary < 0 else '+'} {unit}i",
        f"{first}{'-' if imaginary < 0 else '+'}{unit}i",
        f"{both} {'-' if real < 0 else '+'} {abs(real)}",
    ]
    return rng.choice(forms)


def plain_number(rng: random.Random, value: Fraction) -> str:
    return (
        str(value)
        if value.denominator == 1
        else sign(rf"\frac{{{abs(value.numerator)}}}{{{value.denominator}}}", value < 0)
    )


def change_complex(rng: random.Random, value: object) -> tuple[Fraction, Fraction]:
    assert isinstance(value, tuple)
    real, imaginary = value
    others = [
        (real, -imaginary),
        (real + 1, imaginary),
        (imaginary, real or Fraction(1)),
        (-real - 1, imaginary),
    ]
    return rng.choice([other for other in others if other != value and other[1]] or [(real + 1, imaginary)])


def draw_root(rng: random.Random) -> tuple[int, int]:
    """a times the root of b, which has no square factor."""
    return rng.randint(1, 12), rng.choice([2, 3, 5, 6, 7, 10, 11, 13, 14, 15])


def write_root(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    a, b = value
    factor = "" if a == 1 else str(a)
    forms = [
        rf"{factor}\sqrt{{{b}}}",
        rf"\sqrt{{{a * a * b}}}",
        f"{factor}√{b}",
        rf"{factor} \sqrt {{{b}}}",
        rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        rf"{a} \cdot {b}^{{1/2}}",
    ]
    return rng.choice(forms)


def change_root(rng: random.Random, value: object) -> tuple[int, int]:
    assert isinstance(value, tuple)
    return value[0] + rng.randint(1, 3), value[1]


def draw_percent(rng: random.Random) -> Decimal:
    return Decimal(rng.randint(1, 9999)).scaleb(-rng.choice([0, 1, 2]))


def write_percent(rng: random.Random, value: object) -> str:
    assert isinstance(value, Decimal)
    return rng.choice([rf"{value:f}\%", f"{value:f}%", rf"{value:f} \%", rf"{value:f} \text{{ percent}}"])


def change_percent(rng: random.Random, value: object) -> Decimal:
    assert isinstance(value, Decimal)
    return rng.choice([value + 1, value * 10, value / 100, value + Decimal("0.5")])


# ---------------------------------------------------------------------------------------- containers


def draw_entries(rng: random.Random, number: int) -> tuple[Fraction, ...]:
    """Small numbers; one of twenty stands for so many roots of 3 (see write_entry)."""
    numbers = [Fraction(rng.randint(-20, 20), rng.choice([1, 1, 1, 2, 3])) for _ in range(number)]
    return tuple(n + ROOT if n and rng.random() < 0.05 else n for n in numbers)


ROOT = 1000
"""A number above 500 is written as (number - 1000) roots of 3, which is another number than any below."""


def write_entry(rng: random.Random, value: Fraction) -> str:
    if value > ROOT // 2:
        factor = value - ROOT
        return rng.choice(
            [
                rf"{plain_number(rng, factor)}\sqrt{{3}}",
                rf"{plain_number(rng, factor)}\sqrt3",
                rf"\sqrt{{3}} \cdot ({plain_number(rng, factor)})",
                f"{plain_number(rng, factor)}√3",
            ]
        )
    if value.denominator == 1:
        return rng.choice([str(value), str(value), f"{value}.0", str(value).replace("-", "−")])
    return write_fraction(rng, value)


def draw_matrix(rng: random.Random) -> tuple[int, tuple[Fraction, ...]]:
    rows, columns = rng.randint(1, 3), rng.randint(1, 3)
    return rows, draw_entries(rng, rows * columns if rows * columns > 1 else 2)


def write_matrix(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    rows, entries = value
    columns = len(entries) // rows
    space = rng.choice(["", " "])
    lines = [
        f"{space}&{space}".join(write_entry(rng, e) for e in entries[r * columns : (r + 1) * columns])
        for r in range(rows)
    ]
    name = rng.choice(["pmatrix", "bmatrix"])
    return (
        rf"\begin{{{name}}}{space or ' '}"
        + rf"{space}\\{space or ' '}".join(lines)
        + rf"{space}\end{{{name}}}"
    )


def change_matrix(rng: random.Random, value: object) -> tuple[int, tuple[Fraction, ...]]:
    """Another shape of the same entries, or another entry."""
    assert isinstance(value, tuple)
    rows, entries = value
    shapes = [n for n in range(1, len(entries) + 1) if len(entries) % n == 0 and n != rows]
    if shapes and rng.random() < 0.5:
        return rng.choice(shapes), entries
    return rows, changed_entry(rng, entries)


def changed_entry(rng: random.Random, entries: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    at = rng.randrange(len(entries))
    new = entries[at] + (2 if entries[at] == ROOT - 1 else 1)  # no 0 roots of 3
    return tuple(new if i == at else e for i, e in enumerate(entries))


def draw_interval(rng: random.Random) -> tuple[str, str, str]:
    low, high = sorted(rng.sample(range(-30, 30), 2))
    opening, closing = rng.choice("(["), rng.choice(")]")
    if rng.random() < 0.2:
        return "(", "-inf", f"{high}{closing}"
    if rng.random() < 0.2:
        return opening, str(low), "inf)"
    return opening, str(low), f"{high}{closing}"


def write_interval(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    opening, low, end = value
    high, closing = end[:-1], end[-1]
    left, right = (rng.choice([r"\le", "≤", r"\leq"]) if b in "[]" else "<" for b in (opening, closing))
    tex = {"inf": rng.choice([r"\infty", "∞"]), "-inf": rng.choice([r"-\infty", "-∞"])}
    space = rng.choice(["", " "])
    forms = [
        f"{opening}{tex.get(low, low)},{space}{tex.get(high, high)}{closing}",
        rf"\left{opening}{tex.get(low, low)},{space}{tex.get(high, high)}\right{closing}",
        rf"x \in {opening}{tex.get(low, low)},{space}{tex.get(high, high)}{closing}",
    ]
    if low == "-inf":
        forms.append(f"x {right} {high}")
    elif high == "inf":
        forms.append(f"{low} {left} x")
    else:
        forms.append(f"{low} {left} x {right} {high}")
    return rng.choice(forms)


def change_interval(rng: random.Random, value: object) -> tuple[str, str, str]:
    assert isinstance(value, tuple)
    opening, low, end = value
    if low == "-inf":
        return opening, low, f"{int(end[:-1]) + 1}{end[-1]}"
    flipped = "[" if opening == "(" else "("
    return rng.choice([(flipped, low, end), (opening, str(int(low) - 1), end)])


def draw_set(rng: random.Random) -> tuple[Fraction, ...]:
    values: set[Fraction] = set()
    number = rng.randint(2, 5)
    while len(values) < number:
        values.add(draw_entries(rng, 1)[0])
    return tuple(sorted(values))


def write_set(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    entries = [write_entry(rng, e) for e in rng.sample(value, len(value))]
    return rng.choice([r"\{{{}\}}", r"\left\{{ {} \right\}}", r"\{{ {} \}}"]).format(
        rng.choice([",", ", "]).join(entries)
    )


def write_list(rng: random.Random, value: object) -> str:
    """A space after each comma, or " or "/" and ": without it three digits may be thousands."""
    assert isinstance(value, tuple)
    entries = [write_entry(rng, e) for e in rng.sample(value, len(value))]
    return rng.choice([", ", r" \text{ or } ", " and ", ", "]).join(entries)


def change_set(rng: random.Random, value: object) -> tuple[Fraction, ...]:
    assert isinstance(value, tuple)
    new = next(n for n in range(100) if Fraction(n) not in value)
    return rng.choice([value[1:], (*value, Fraction(new)), (*value[1:], Fraction(new))])


def draw_pair(rng: random.Random) -> tuple[Fraction, ...]:
    return draw_entries(rng, rng.randint(2, 3))


def write_pair(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    entries = rng.choice([",", ", "]).join(write_entry(rng, e) for e in value)
    names = ", ".join("xyz"[: len(value)])
    return rng.choice(
        [f"({entries})", rf"\left({entries}\right)", f"({names}) = ({entries})", f"( {entries} )"]
    )


def change_pair(rng: random.Random, value: object) -> tuple[Fraction, ...]:
    assert isinstance(value, tuple)
    others = [changed_entry(rng, value), value[::-1], (*value, Fraction(0)), value[1:] + value[:1]]
    return rng.choice([other for other in others if other != value])


# ------------------------------------------------------------------------------------ units and words

UNIT_NAMES = {
    ("cm", 1): (r"\text{ cm}", " cm", r"\mathrm{cm}", r"\text{ centimeters}"),
    ("cm", 2): (r"\text{ cm}^2", r"\text{ cm}^{2}", " cm²", r"\text{ square centimeters}"),
    ("cm", 3): (r"\text{ cm}^3", r"\text{ cubic centimeters}", r"\,\text{cm}^{3}"),
    ("m", 1): (r"\text{ m}", r"\text{ meters}", r"\ \mathrm{m}"),
    ("m/s", 1): (r"\text{ m/s}", r"\text{ meters per second}", r"\text{ m}/\text{s}"),
    ("kJ", 1): (r"\text{ kJ}", " kJ", r"\text{ kilojoules}"),
    ("J", 1): (r"\text{ J}", r"\text{ joules}"),
    ("hour", 1): (r"\text{ hours}", " hours", r"\text{ h}"),
    ("minute", 1): (r"\text{ minutes}", " minutes", r"\text{ min}"),
    ("degree", 1): (r"^\circ", "°", r"^{\circ}", r"\text{ degrees}"),
    ("PM", 1): (r"\text{ PM}", r"\text{ p.m.}", " PM"),
    ("AM", 1): (r"\text{ AM}", r"\text{ a.m.}", " AM"),
    ("million", 1): (r"\text{ million}", " million"),
    ("billion", 1): (r"\text{ billion}", " billion"),
    ("mm", 1): (r"\text{ mm}", " mm", r"\text{ millimeters}"),
    ("km", 2): (r"\text{ km}^2", " km²", r"\text{ square kilometers}"),
    ("km/h", 1): (r"\text{ km/h}", r"\text{ kilometers per hour}", r"\text{ km/hr}"),
    ("foot", 1): (r"\text{ ft}", " feet", r"\text{ feet}"),
    ("inch", 1): (r"\text{ in}", r"\text{ inches}", " inches"),
    ("dollar", 1): (r"\text{ dollars}", " dollars"),
    ("cent", 1): (r"\text{ cents}", " cents"),
    ("kg", 1): (r"\text{ kg}", " kg", r"\text{ kilograms}"),
    ("mg", 1): (r"\text{ mg}", " mg", r"\text{ milligrams}"),
}
WORDS = (
    "does not exist",
    "no",
    "yes",
    "even",
    "odd",
    "neither",
    "Monday",
    "Tuesday",
    "infinitely many",
    "no solution",
    "isosceles",
    "equilateral",
    "New York",
    "always",
    "never",
    "sometimes",
    "Alice",
    "the ellipse",
    "a circle",
)


def draw_quantity(rng: random.Random) -> tuple[int, tuple[str, int]]:
    return rng.randint(1, 60), rng.choice(list(UNIT_NAMES))


def write_quantity(rng: random.Random, value: object) -> str:
    assert isinstance(value, tuple)
    number, unit = value
    return rng.choice([str(number), str(number), f"{number}.0"]) + rng.choice(UNIT_NAMES[unit])


def change_quantity(rng: random.Random, value: object) -> tuple[int, tuple[str, int]]:
    """No two of the units are equal for one number."""
    assert isinstance(value, tuple)
    number, unit = value
    other = rng.choice([u for u in UNIT_NAMES if u != unit])
    return rng.choice([(number + 61, unit), (number, other)])


def draw_words(rng: random.Random) -> str:
    return rng.choice(WORDS)


def write_words(rng: random.Random, value: object) -> str:
    assert isinstance(value, str)
    text = rng.choice([value, value.capitalize()])
    forms = [rf"\text{{{text}}}", rf"\text{{{text}.}}", rf"\textbf{{{text}}}", rf"\mathrm{{{text}}}"]
    return rng.choice(forms if len(value) < 4 else [*forms, text])


def change_words(rng: random.Random, value: object) -> str:
    return rng.choice([word for word in WORDS if word != value])


def draw_choice(rng: random.Random) -> str:
    return rng.choice("ABCDE")


def write_choice(rng: random.Random, value: object) -> str:
    """A letter, sometimes with what stands behind it in the question, which the letter decides."""
    forms = [
        "{}",
        "({})",
        r"\text{{{}}}",
        r"\text{{({})}}",
        r"\textbf{{({})}}",
        r"\mathbf{{{}}}",
        "{}.",
        r"\textbf{{({})}}\ {content}",
        "{}. {content}",
        "{}) {content}",
        r"\text{{({}) {content}}}",
    ]
    return rng.choice(forms).format(value, content=CHOICES[str(value)])


CHOICES = {"A": "12", "B": "13", "C": "Paris", "D": "none of the above", "E": "x+1"}


def change_choice(rng: random.Random, value: object) -> str:
    return rng.choice([letter for letter in "ABCDE" if letter != value])


KINDS = {
    "integers": Kind(draw_integer, write_integer, change_integer),
    "decimals": Kind(draw_decimal, write_decimal, change_decimal),
    "scientific": Kind(draw_scientific, write_scientific, change_scientific),
    "fractions": Kind(draw_fraction, write_fraction, change_fraction),
    "mixed numbers": Kind(draw_mixed, write_mixed, change_fraction),
    "complex numbers": Kind(draw_complex, write_complex, change_complex),
    "roots": Kind(draw_root, write_root, change_root),
    "percentages": Kind(draw_percent, write_percent, change_percent),
    "matrices": Kind(draw_matrix, write_matrix, change_matrix),
    "intervals": Kind(draw_interval, write_interval, change_interval),
    "sets": Kind(draw_set, write_set, change_set),
    "lists": Kind(draw_set, write_list, change_set),
    "pairs": Kind(draw_pair, write_pair, change_pair),
    "units": Kind(draw_quantity, write_quantity, change_quantity),
    "words": Kind(draw_words, write_words, change_words),
    "multiple choice": Kind(draw_choice, write_choice, change_choice),
}
