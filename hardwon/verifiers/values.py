r"""The shape of an answer: numbers with units, lists, sets, pairs, intervals, matrices; when two are equal.

A shape is read without sympy. What is no number of arithmetic.py is a `Leaf` without a value; two leaves are
compared by the judge that the caller gives (math-verify). `same` is None where shapes can't be compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from hardwon.verifiers.answers import LONGEST, shortened
from hardwon.verifiers.arithmetic import Number, as_rational, read_number
from hardwon.verifiers.notation import squeezed, without_thousands
from hardwon.verifiers.units import Unit, split_unit

ROUNDED_PLACES, ROUNDED_DIGITS = 6, 5  # ours
MAX_DEPTH = 6
MAX_PAIRS = 40  # comparisons by the judge for two sets

NO_UNIT = Unit()
Judge = Callable[[str, str], bool | None]


@dataclass(frozen=True)
class Leaf:
    """One number or formula. `number` is None if arithmetic.py can't read it; `places` if a plain decimal."""

    text: str
    number: Number | None = None
    infinite: int = 0  # sign of an infinity
    places: int | None = None
    digits: int = 0
    percent: bool = False
    unit: Unit = NO_UNIT


@dataclass(frozen=True)
class Bag:
    r"""Elements in no order: a list with commas, a set in braces (equal elements are one), or a union."""

    items: tuple[Value, ...]
    braces: bool
    union: bool = False


@dataclass(frozen=True)
class Ordered:
    """A pair or tuple `()`, or an interval; `variable` where it was written as an inequality."""

    brackets: str
    items: tuple[Value, ...]
    variable: str = ""


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Named:
    r"""`x = 5`, `x \in [1,2]`, `(x,y) = (2,3)`: a value and what it is the value of."""

    name: str
    value: Value
    text: str = field(compare=False)


Value = Leaf | Bag | Ordered | Matrix | Named

BRACES = re.compile(
    r"\\[{}]|\\begin|\\end|[()\[\]{}]|,|;|\\text\s*\{\s*,?\s*(?:or|and)\s*\}|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])"
)
OPENING, CLOSING = {r"\{", r"\begin", "(", "[", "{"}, {r"\}", r"\end", ")", "]", "}"}
MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)
NAME = r"[A-Za-z](?:_\{?\w+\}?|')?(?:\(\s*[A-Za-z]\s*\))?|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)|\\[a-zA-Z]+"
NAMED = re.compile(rf"({NAME})\s*(?:=|\\in(?![a-z]))\s*(.+)", re.DOTALL)
RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|<=|>=|[<>=]")
DIRECTION = {"<": ("<", False), "\\lt": ("<", False), "\\le": ("<", True), "<=": ("<", True),
             ">": (">", False), "\\gt": (">", False), "\\ge": (">", True), ">=": (">", True)}  # fmt: skip
DECIMAL = re.compile(r"-?\s*(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?")
PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:per\s?cent|\\?%)\s*\}|per\s?cent)\s*$", re.IGNORECASE)


def read(text: str, *, letters: bool = False, depth: int = 0) -> Value:
    """The shape of an answer in one_spelling; a Leaf with the text alone where there is none to see."""
    text = text.strip()
    if depth > MAX_DEPTH:
        return Leaf(text)
    inside = partial(read, letters=letters, depth=depth + 1)
    if text == r"\mathbb{R}":
        return Ordered("()", (Leaf(r"-\infty", infinite=-1), Leaf(r"\infty", infinite=1)))
    if (match := MATRIX.fullmatch(text)) and "\\begin" not in match[1]:
        rows = [row for row in match[1].split(r"\\") if row.strip()]
        return Matrix(tuple(tuple(inside(cell) for cell in row.split("&")) for row in rows))
    brackets, content = bracketed(text)
    if not brackets or ", " in content:
        text, content = without_thousands(text), without_thousands(content)
    if brackets:
        parts = split(content)
        if brackets == "{}":
            return Bag(tuple(map(inside, parts)), braces=True)
        if len(parts) > 1:
            return Ordered(brackets, tuple(map(inside, parts)))
    parts = split(text)
    if len(parts) > 1:
        return Bag(tuple(map(inside, parts)), braces=False)
    if "\\cup" in text:
        intervals = [inside(part) for part in re.split(r"\\cup(?![a-z])", text)]
        alike = all(isinstance(interval, Ordered) for interval in intervals)
        return Bag(tuple(intervals), braces=False, union=True) if alike else Leaf(text)
    if text.count(r"\pm") == 1:
        return Bag(tuple(inside(text.replace(r"\pm", sign)) for sign in "+-"), braces=False)
    match = NAMED.fullmatch(text)
    if match and len(RELATION.findall(text)) == ("\\in" not in match.group()[: match.start(2)]):
        return Named(squeezed(match[1]), inside(match[2]), text)
    return read_range(text) or read_leaf(text, letters)


def bracketed(text: str) -> tuple[str, str]:
    r"""The kind of the brackets around the text, "()", "[)", "{}", ..., and what is inside; "" if none."""
    kinds = {"(": "(", "[": "[", "\\{": "{", ")": ")", "]": "]", "\\}": "}"}
    opening = text[:2] if text[:1] == "\\" else text[:1]
    closing = text[-2:] if text[-2:-1] == "\\" else text[-1:]
    if opening not in {"(", "[", "\\{"} or closing not in {")", "]", "\\}"}:
        return "", text
    if (opening == "\\{") != (closing == "\\}"):
        return "", text
    depth = 0
    for match in BRACES.finditer(text):
        depth += (match.group() in OPENING) - (match.group() in CLOSING)
        if depth <= 0 and match.end() < len(text):
            return "", text
    return kinds[opening] + kinds[closing], text[len(opening) : len(text) - len(closing)]


def split(text: str) -> list[str]:
    """The elements of a list at the outermost level."""
    parts, depth, begin = [], 0, 0
    for match in BRACES.finditer(text):
        mark = match.group()
        if mark in OPENING or mark in CLOSING:
            depth += 1 if mark in OPENING else -1
        elif depth == 0:
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def read_range(text: str) -> Ordered | None:
    r"""`1 \le x < 2` as [1,2), with its variable; None for other relations."""
    relations = RELATION.findall(text)
    if not 1 <= len(relations) <= 2 or any(relation not in DIRECTION for relation in relations):
        return None
    sides = [side.strip() for side in RELATION.split(text)]
    directions = [DIRECTION[relation] for relation in relations]
    if len({direction for direction, _ in directions}) > 1:
        return None
    if directions[0][0] == ">":
        sides, directions = sides[::-1], directions[::-1]
    if len(sides) == 2:  # a < x, x < b
        endless = (Leaf(r"-\infty", infinite=-1), Leaf(r"\infty", infinite=1))
        variable_first = re.fullmatch(r"[A-Za-z]", sides[0]) is not None
        variable, end = (sides[0], sides[1]) if variable_first else (sides[1], sides[0])
        closed = directions[0][1]
        ends = (endless[0], read_leaf(end)) if variable_first else (read_leaf(end), endless[1])
        brackets = ("(", "]" if closed else ")") if variable_first else ("[" if closed else "(", ")")
    else:
        variable = sides[1]
        ends = read_leaf(sides[0]), read_leaf(sides[2])
        brackets = "[" if directions[0][1] else "(", "]" if directions[1][1] else ")"
    if not re.fullmatch(r"[A-Za-z]", variable) or any(e.number is None and not e.infinite for e in ends):
        return None
    return Ordered("".join(brackets), ends, variable)


def read_leaf(text: str, letters: bool = False) -> Leaf:
    without = PERCENT.sub("", text)
    percent = without != text and bool(without.strip())
    body, unit = split_unit(without if percent else text, letters=letters)
    leaf = Leaf(body, percent=percent, unit=unit)
    if match := re.fullmatch(r"([+-]?)\s*\\infty(?![a-z])", body.strip()):
        return replace(leaf, infinite=-1 if match[1] == "-" else 1)
    number = read_number(body)
    if number is None:
        return leaf
    if not DECIMAL.fullmatch(body):
        return replace(leaf, number=number)
    places, digits = written_places(body)
    return replace(leaf, number=number, places=places, digits=digits)


def written_places(text: str) -> tuple[int, int]:
    """Decimal places and significant digits of a decimal as written, trailing zeros aside."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.strip(" -").partition(".")
    decimals = decimals.rstrip("0")
    return max(0, len(decimals) - int(exponent or 0)), len((whole + decimals).lstrip("0"))


# ------------------------------------------------------------------------------------------ equality


def same(gold: Value, answer: Value, judge: Judge) -> bool | None:
    """Whether an answer is the gold answer; None where their shapes are not comparable."""
    if isinstance(gold, Named) or isinstance(answer, Named):
        return same_named(gold, answer, judge)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return same_leaf(gold, answer, judge)
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        pairs = zip(gold.rows, answer.rows, strict=True)
        return together([same(a, b, judge) for rows in pairs for a, b in zip(*rows, strict=True)])
    if isinstance(gold, Ordered) and isinstance(answer, Ordered):
        return same_ordered(gold, answer, judge)
    if isinstance(gold, Bag) and isinstance(answer, Bag):
        return same_bag(gold, answer, judge)
    return same_across(gold, answer, judge)


def same_named(gold: Value, answer: Value, judge: Judge) -> bool | None:
    if not (isinstance(gold, Named) and isinstance(answer, Named)):
        other = answer if isinstance(gold, Named) else gold
        if isinstance(other, Leaf) and "=" in other.text:
            return None  # y = x against 2y = 2x
        gold, answer = (v.value if isinstance(v, Named) else v for v in (gold, answer))
        return same(gold, answer, judge)
    if gold.name == answer.name:
        return same(gold.value, answer.value, judge)
    numbers = all(isinstance(v.value, Leaf) and v.value.number is not None for v in (gold, answer))
    tuples = all(isinstance(v.value, Ordered) for v in (gold, answer))
    return False if numbers or tuples else judge(gold.text, answer.text)


def same_leaf(gold: Leaf, answer: Leaf, judge: Judge) -> bool | None:
    if gold.unit.contradicts(answer.unit):
        return False
    scales = gold.unit.scale(answer.unit), answer.unit.scale(gold.unit)
    if gold.infinite or answer.infinite:
        readable = all(leaf.infinite or leaf.number is not None for leaf in (gold, answer))
        return gold.infinite == answer.infinite if readable else judge(gold.text, answer.text)
    if gold.number is None or answer.number is None:
        if scales[0] != scales[1]:
            return False
        texts = [leaf.text + (r"\%" if leaf.percent else "") for leaf in (gold, answer)]
        return squeezed(texts[0]) == squeezed(texts[1]) or judge(*texts)
    factors = {Fraction(1)}
    if gold.percent != answer.percent:  # 9 percent for 0.09, and the sign is forgiven: 9 percent for 9
        factors = {Fraction(1, 100) if answer.percent else Fraction(100)}
        if gold.percent or is_at_least_one(answer.number):  # but 0.5 percent is not 1/2
            factors.add(Fraction(1))
    wanted = scaled(gold.number, scales[0])
    found = [scaled(answer.number, scales[1] * factor) for factor in factors]
    if wanted in found:
        return True
    if not gold.places or gold.places < ROUNDED_PLACES or gold.digits < ROUNDED_DIGITS:
        return False
    half = scales[0] / (2 * 10**gold.places)  # a long decimal in the data is a rounded number
    decimals = [as_rational(number) for number in found]
    if None in decimals:
        return judge(gold.text, answer.text)
    real = as_rational(wanted)
    return any(abs(real - other) <= half for other in decimals if real is not None and other is not None)


def is_at_least_one(number: Number) -> bool:
    value = as_rational(number)
    return value is None or abs(value) >= 1


def scaled(number: Number, factor: Fraction) -> Number:
    return {term: (real * factor, imaginary * factor) for term, (real, imaginary) in number.items()}


def together(found: Sequence[bool | None]) -> bool | None:
    """Whether all parts are equal; one that differs decides, whatever the others are."""
    if False in found:
        return False
    return None if None in found else True


def same_ordered(gold: Ordered, answer: Ordered, judge: Judge) -> bool | None:
    if gold.variable and answer.variable and gold.variable != answer.variable:
        return False
    if gold.brackets != answer.brackets or len(gold.items) != len(answer.items):
        return False
    return together([same(a, b, judge) for a, b in zip(gold.items, answer.items, strict=True)])


def same_bag(gold: Bag, answer: Bag, judge: Judge) -> bool | None:
    if gold.union or answer.union:
        return same_union(gold, answer, judge)
    if gold.braces and answer.braces:
        gold, answer = distinct(gold), distinct(answer)
    if len(gold.items) != len(answer.items):
        return False
    left, asked = list(answer.items), 0

    def counted(a: str, b: str) -> bool | None:
        nonlocal asked
        asked += 1
        return judge(a, b) if asked <= MAX_PAIRS else None

    for value in gold.items:
        likely = sorted(left, key=lambda other: canonical(other) != canonical(value))
        match = next((other for other in likely if same(value, other, counted)), None)
        if match is None:
            return False if asked <= MAX_PAIRS else None
        left.remove(match)
    return True


def same_union(gold: Bag, answer: Bag, judge: Judge) -> bool | None:
    """A union, or inequalities with "or"; others may still be one set: [1,2] and [2,3] is [1,3]."""
    for bag in (gold, answer):
        if not bag.union and not all(isinstance(item, Ordered) and item.variable for item in bag.items):
            return None
    return same_bag(replace(gold, union=False), replace(answer, union=False), judge) or None


def distinct(bag: Bag) -> Bag:
    return replace(bag, items=tuple({canonical(item): item for item in bag.items}.values()))


def same_across(gold: Value, answer: Value, judge: Judge) -> bool | None:
    """A list for a pair, a number for a set of one; braces are no pair; the rest can't be told here."""
    kinds = {type(gold), type(answer)}
    bag = next((v for v in (gold, answer) if isinstance(v, Bag)), None)
    other = answer if bag is gold else gold
    if bag is not None and isinstance(other, Leaf):
        if len(bag.items) == 1:
            alone = [v.items[0] if isinstance(v, Bag) else v for v in (gold, answer)]
            return same(alone[0], alone[1], judge)
        return False if other.number is not None or other.infinite else None
    if bag is not None and isinstance(other, Ordered):
        if bag.braces:
            return False
        if other.brackets != "()" or other.variable or len(bag.items) != len(other.items):
            return None
        items = bag.items
        if all(isinstance(item, Named) for item in items):  # y=3, x=2 for (2,3)
            items = tuple(sorted(items, key=lambda item: item.name))  # type: ignore[union-attr]
        tuples = [Ordered("()", items) if v is bag else v for v in (gold, answer)]
        return same(tuples[0], tuples[1], judge)
    if kinds == {Leaf, Ordered} or kinds == {Leaf, Matrix}:
        leaf = gold if isinstance(gold, Leaf) else answer
        assert isinstance(leaf, Leaf)
        return False if leaf.number is not None or leaf.infinite else None
    return None


# ------------------------------------------------------------------------------------- canonical form


def canonical(value: Value, formula: Callable[[str], str] = squeezed) -> str:
    r"""One text for an answer, however it is written, by which responses vote; at most 200 characters.

    `formula` writes what is no plain number.

    >>> [canonical(read(text)) for text in ("0.5", r"\frac{1}{2}", "1/2", r"\{2, 1\}", "3+4i")]
    ['1/2', '1/2', '1/2', '{1,2}', '3+4i']
    """
    return shortened(written(value, formula))


def written(value: Value, formula: Callable[[str], str]) -> str:
    match value:
        case Named(value=inner):
            return written(inner, formula)
        case Leaf():
            return written_leaf(value, formula)
        case Bag(items=items, braces=braces):
            texts = sorted(written(item, formula) for item in items)
            return "{" + ",".join(dict.fromkeys(texts)) + "}" if braces else ",".join(texts)
        case Ordered(brackets=brackets, items=items):
            return brackets[0] + ",".join(written(item, formula) for item in items) + brackets[1]
        case Matrix(rows=rows):
            return "[" + ";".join(",".join(written(cell, formula) for cell in row) for row in rows) + "]"


def written_leaf(leaf: Leaf, formula: Callable[[str], str]) -> str:
    names = "".join(f" {name}^{power}" if power != 1 else f" {name}" for name, power in leaf.unit.dimensions)
    if leaf.infinite:
        return ("-" if leaf.infinite < 0 else "") + "oo"
    scale = leaf.unit.magnitude * leaf.unit.factor / (100 if leaf.percent else 1)
    if leaf.number is None:
        return (f"{scale}*" if scale != 1 else "") + formula(leaf.text) + names
    terms = sorted(scaled(leaf.number, scale).items())
    return ("+".join(written_term(*term) for term in terms) or "0").replace("+-", "-") + names


def written_term(term: tuple[int, int], coefficient: tuple[Fraction, Fraction]) -> str:
    (n, k), (real, imaginary) = term, coefficient
    parts = [written_fraction(real)] if real else []
    parts += [written_fraction(imaginary) + "i"] if imaginary else []
    root = f"*sqrt({n})" if n > 1 else ""
    pi = (f"*pi^{k}" if k != 1 else "*pi") if k else ""
    total = "+".join(parts)
    return (f"({total})" if len(parts) > 1 and (root or pi) else total) + root + pi


def written_fraction(value: Fraction) -> str:
    """The fraction in full; one of thousands of digits by its hash, as Python refuses to write it."""
    if max(abs(value.numerator), value.denominator).bit_length() > 10_000:
        return f"{value.numerator:x}/{value.denominator:x}"
    return str(value)


def canonical_text(text: str) -> str | None:
    """The canonical form for verifiers of plain text: a number by its value, other text as it is."""
    text = " ".join(text.split())
    number = read_number(text) if len(text) <= LONGEST else None
    return (shortened(text) if number is None else canonical(Leaf(text, number))) or None
