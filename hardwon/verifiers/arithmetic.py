r"""Numbers as LaTeX writes them, read exactly: decimals, fractions, mixed numbers, powers, complex numbers.

Only what has one meaning is read; for the rest (roots, \pi, variables, 1/2i) there is None and math-verify.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

Complex = tuple[Fraction, Fraction]
"""Real and imaginary part."""

TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5}(?![\d.A-Za-z]))?)"
    r"|(?P<command>\\(?:frac|sqrt|cdot|times|div)(?![a-zA-Z]))|(?P<sign>[-+*/^(){}i])|(?P<space>\s+)"
)
MIXED = re.compile(r"(\d+)\s+(\d+)/(\d+)")
MAX_BITS = 40_000
MAX_DEPTH = 30
TIMES = {"*", "\\cdot", "\\times"}
OVER = {"/", "\\div"}


class Unreadable(Exception):
    """Not a number that this reader knows."""


def read_number(text: str) -> Complex | None:
    r"""The value, or None.

    >>> read_number(r"1\frac{1}{2}"), read_number("1e-2")[0], read_number("5e"), read_number("9^9^9^9")
    ((Fraction(3, 2), Fraction(0, 1)), Fraction(1, 100), None, None)
    """
    try:
        reader = Reader(MIXED.sub(r"\1\\frac{\2}{\3}", text))
        value = reader.expression()
        return value if reader.peek() == "" else None
    except (Unreadable, ZeroDivisionError):
        return None


def tokens_of(text: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise Unreadable
        position = match.end()
        if match.lastgroup != "space":
            found.append(match.group())
        elif found and found[-1][-1].isdigit() and text[position : position + 1].isdigit():
            raise Unreadable  # 6 7
    return found


class Reader:
    """Recursive descent over the tokens; every value that it makes is bounded in size."""

    def __init__(self, text: str) -> None:
        self.tokens = tokens_of(text)
        self.at = self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def take(self, wanted: str) -> None:
        if self.next() != wanted:
            raise Unreadable

    def expression(self) -> Complex:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        value = self.term()
        while self.peek() in {"+", "-"}:
            minus = self.next() == "-"
            value = bounded(add(value, self.term(), -1 if minus else 1))
        self.depth -= 1
        return value

    def term(self) -> Complex:
        if self.peek() in {"+", "-"}:
            minus = self.next() == "-"
            value = self.term_without_sign()
            return (-value[0], -value[1]) if minus else value
        return self.term_without_sign()

    def term_without_sign(self) -> Complex:
        value = self.mixed_number() or self.power()
        divided = False
        while True:
            token = self.peek()
            if token in TIMES | OVER:
                self.next()
                factor = self.signed_power()
                divided = token in OVER
                value = bounded(divide(value, factor) if divided else multiply(value, factor))
            elif token in {"(", "{", "i", "\\frac", "\\sqrt"}:
                if divided or (token == "\\frac" and self.tokens[self.at - 1][-1].isdigit()):
                    raise Unreadable  # 1/2i and 2\\frac{3}{2} are read in two ways
                value = bounded(multiply(value, self.power()))
            else:
                return value

    def signed_power(self) -> Complex:
        if self.peek() == "-":
            self.next()
            value = self.power()
            return -value[0], -value[1]
        return self.power()

    def mixed_number(self) -> Complex | None:
        r"""1\frac{1}{2} is 3/2, if the fraction is a proper one of whole numbers."""
        part = self.tokens[self.at : self.at + 8]
        if len(part) < 8 or [part[i] for i in (1, 2, 4, 5, 7)] != ["\\frac", "{", "}", "{", "}"]:
            return None
        if not all(part[i].isdigit() for i in (0, 3, 6)) or not 0 < int(part[3]) < int(part[6]):
            return None
        self.at += 8
        return int(part[0]) + Fraction(int(part[3]), int(part[6])), Fraction(0)

    def power(self) -> Complex:
        base = self.atom()
        if self.peek() != "^":
            return base
        self.next()
        sign = -1 if self.peek() == "-" else 1
        self.at += sign < 0
        return raised(base, sign, self.power())

    def atom(self) -> Complex:
        token = self.next()
        if token == "i":
            return Fraction(0), Fraction(1)
        if token in {"(", "{"}:
            value = self.expression()
            self.take(")" if token == "(" else "}")
            return value
        if token == "\\frac":
            above = self.group()
            return bounded(divide(above, self.group()))
        if token == "\\sqrt":
            return square_root(self.group())
        if not token[:1].isdigit() and token[:1] != ".":
            raise Unreadable
        return bounded((decimal(token), Fraction(0)))

    def group(self) -> Complex:
        if self.peek() != "{":
            raise Unreadable
        return self.atom()


def decimal(text: str) -> Fraction:
    if len(text) > 1500 or abs(int("0" + re.sub(r"^.*[eE][+-]?|^[^eE]*$", "", text))) > 5000:
        raise Unreadable
    return Fraction(text)


def bounded(value: Complex) -> Complex:
    if any(max(abs(part.numerator), part.denominator).bit_length() > MAX_BITS for part in value):
        raise Unreadable
    return value


def add(a: Complex, b: Complex, sign: int) -> Complex:
    return a[0] + sign * b[0], a[1] + sign * b[1]


def multiply(a: Complex, b: Complex) -> Complex:
    if not a[1] and not b[1]:
        return a[0] * b[0], Fraction(0)
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def divide(a: Complex, b: Complex) -> Complex:
    size = b[0] * b[0] + b[1] * b[1]
    re_part, im_part = multiply(a, (b[0], -b[1]))
    return re_part / size, im_part / size


def raised(base: Complex, sign: int, exponent: Complex) -> Complex:
    n = sign * int(exponent[0])
    bits = max(max(abs(part.numerator), part.denominator).bit_length() for part in base)
    if exponent[1] or sign * exponent[0] != n or abs(n) * bits > MAX_BITS:
        raise Unreadable
    if not any(base) and n == 0:
        raise Unreadable
    if not base[1]:
        return base[0] ** n, Fraction(0)
    if abs(n) > 100:
        raise Unreadable
    value: Complex = (Fraction(1), Fraction(0))
    for _ in range(abs(n)):
        value = multiply(value, base)
    return value if n >= 0 else divide((Fraction(1), Fraction(0)), value)


def square_root(value: Complex) -> Complex:
    """Only where it is rational."""
    if value[1] or value[0] < 0:
        raise Unreadable
    parts = [math.isqrt(n) for n in value[0].as_integer_ratio()]
    if [n * n for n in parts] != list(value[0].as_integer_ratio()):
        raise Unreadable
    return Fraction(*parts), Fraction(0)
