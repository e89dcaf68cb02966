r"""Numbers as LaTeX writes them, read exactly: decimals, fractions, mixed numbers, powers, roots, \pi, i.

A number is a sum of terms c \sqrt{n} \pi^k with n square-free and c rational or complex; such a sum has one
form only, so two numbers are equal if their terms are. What has another form or two meanings (\sin 1, 1/2i,
cube roots, variables) is not read: there is None, and math-verify.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

Complex = tuple[Fraction, Fraction]
"""Real and imaginary part of a coefficient."""
Number = dict[tuple[int, int], Complex]
"""Coefficients by (n, k), those of the terms c sqrt(n) pi^k; no coefficient is 0."""

ONE = (1, 0)
TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5}(?![\d.A-Za-z]))?)"
    r"|(?P<command>\\(?:frac|sqrt|cdot|times|div|pi)(?![a-zA-Z]))|(?P<sign>[-+*/^(){}i])|(?P<space>\s+)"
)
MIXED = re.compile(r"(\d+)\s+(\d+)/(\d+)")
MAX_BITS = 40_000
MAX_DEPTH = 30
MAX_TERMS = 40
MAX_RADICAND = 10**9
TIMES = {"*", "\\cdot", "\\times"}
OVER = {"/", "\\div"}
IMPLICIT = {"(", "{", "i", "\\frac", "\\sqrt", "\\pi"}  # what a product may go on with without a sign


class UnreadableError(Exception):
    """Not a number that this reader knows."""


def read_number(text: str) -> Number | None:
    r"""The value, or None.

    >>> read_number(r"1\frac{1}{2}") == rational(Fraction(3, 2)), read_number("5e"), read_number("9^9^9^9")
    (True, None, None)
    >>> read_number(r"\frac{2}{\sqrt{8}}") == read_number(r"\frac{\sqrt{2}}{2}")
    True
    """
    try:
        reader = Reader(MIXED.sub(r"\1\\frac{\2}{\3}", text))
        value = reader.expression()
        return value if reader.peek() == "" else None
    except (UnreadableError, ZeroDivisionError):
        return None


def tokens_of(text: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise UnreadableError
        position = match.end()
        if match.lastgroup != "space":
            found.append(match.group())
        elif found and found[-1][-1].isdigit() and text[position : position + 1].isdigit():
            raise UnreadableError  # 6 7
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
            raise UnreadableError

    def expression(self) -> Number:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError
        value = self.term()
        while self.peek() in {"+", "-"}:
            minus = self.next() == "-"
            value = bounded(add(value, self.term(), -1 if minus else 1))
        self.depth -= 1
        return value

    def term(self) -> Number:
        if self.peek() in {"+", "-"}:
            minus = self.next() == "-"
            value = self.term_without_sign()
            return add({}, value, -1) if minus else value
        return self.term_without_sign()

    def term_without_sign(self) -> Number:
        mixed = self.mixed_number()
        value = self.power() if mixed is None else mixed
        divided = False
        while True:
            token = self.peek()
            if token in TIMES | OVER:
                self.next()
                factor = self.signed_power()
                divided = token in OVER
                value = bounded(divide(value, factor) if divided else multiply(value, factor))
            elif token in IMPLICIT:
                if divided or (token == "\\frac" and self.tokens[self.at - 1][-1].isdigit()):
                    raise UnreadableError  # 1/2i and 2\\frac{3}{2} are read in two ways
                value = bounded(multiply(value, self.power()))
            else:
                return value

    def signed_power(self) -> Number:
        if self.peek() == "-":
            self.next()
            value = self.power()
            return add({}, value, -1)
        return self.power()

    def mixed_number(self) -> Number | None:
        r"""1\frac{1}{2} is 3/2, if the fraction is a proper one of whole numbers."""
        part = self.tokens[self.at : self.at + 8]
        if len(part) < 8 or [part[i] for i in (1, 2, 4, 5, 7)] != ["\\frac", "{", "}", "{", "}"]:
            return None
        if not all(part[i].isdigit() for i in (0, 3, 6)) or not 0 < int(part[3]) < int(part[6]):
            return None
        self.at += 8
        return rational(int(part[0]) + Fraction(int(part[3]), int(part[6])))

    def power(self) -> Number:
        base = self.atom()
        if self.peek() != "^":
            return base
        self.next()
        sign = -1 if self.peek() == "-" else 1
        self.at += sign < 0
        return raised(base, sign, self.power())

    def atom(self) -> Number:
        token = self.next()
        if token == "i":
            return {ONE: (Fraction(0), Fraction(1))}
        if token == "\\pi":
            return {(1, 1): (Fraction(1), Fraction(0))}
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
            raise UnreadableError
        return bounded(rational(decimal(token)))

    def group(self) -> Number:
        if self.peek() != "{":
            raise UnreadableError
        return self.atom()


def decimal(text: str) -> Fraction:
    exponent = re.split("[eE]", text)[1:]
    if len(text) > 1500 or any(abs(int(digits)) > 5000 for digits in exponent):
        raise UnreadableError
    return Fraction(text)


def rational(value: Fraction) -> Number:
    return {ONE: (value, Fraction(0))} if value else {}


def as_rational(value: Number) -> Fraction | None:
    """The number as a fraction; None for one that is irrational or complex."""
    real, imaginary = value.get(ONE, (Fraction(0), Fraction(0)))
    return None if imaginary or value.keys() - {ONE} else real


def bounded(value: Number) -> Number:
    parts = [part for coefficient in value.values() for part in coefficient]
    if len(value) > MAX_TERMS or any(bits(part) > MAX_BITS for part in parts):
        raise UnreadableError
    return value


def bits(value: Fraction) -> int:
    return max(abs(value.numerator), value.denominator).bit_length()


def add(a: Number, b: Number, sign: int) -> Number:
    total = dict(a)
    for term, (real, imaginary) in b.items():
        before = total.get(term, (Fraction(0), Fraction(0)))
        total[term] = before[0] + sign * real, before[1] + sign * imaginary
    return {term: coefficient for term, coefficient in total.items() if any(coefficient)}


def multiply(a: Number, b: Number) -> Number:
    if len(a) * len(b) > MAX_TERMS:
        raise UnreadableError
    total: Number = {}
    for (n, k), (u, v) in a.items():
        for (m, j), (x, y) in b.items():
            # sqrt(n) sqrt(m) is g sqrt(nm/g^2) for the common divisor g of two square-free numbers.
            g = math.gcd(n, m)
            term = {(n * m // g**2, k + j): (g * (u * x - v * y), g * (u * y + v * x))}
            total = add(total, term, 1)
    return total


def divide(a: Number, b: Number) -> Number:
    if not b:
        raise ZeroDivisionError
    if len(b) == 1:
        (((n, k), (x, y)),) = b.items()
        size = n * (x * x + y * y)  # 1/(c sqrt n) is conj(c) sqrt n / (n |c|^2)
        return multiply(a, {(n, -k): (x / size, -y / size)})
    conjugate = {term: c if term == ONE else (-c[0], -c[1]) for term, c in b.items()}
    rationalised = multiply(b, conjugate)
    if len(b) > 2 or set(rationalised) != {ONE}:
        raise UnreadableError
    return divide(multiply(a, conjugate), rationalised)


def raised(base: Number, sign: int, exponent: Number) -> Number:
    power = as_rational(exponent)
    if power is None:
        raise UnreadableError
    power *= sign
    if power.denominator == 2 and power.numerator == 1:
        return square_root(base)
    value, n = as_rational(base), int(power)
    if power != n or (not base and n == 0):
        raise UnreadableError
    if value is not None:
        if abs(n) * bits(value) > MAX_BITS:
            raise UnreadableError
        return rational(value**n)
    if abs(n) > 100:
        raise UnreadableError
    product = rational(Fraction(1))
    for _ in range(abs(n)):
        product = bounded(multiply(product, base))
    return product if n >= 0 else divide(rational(Fraction(1)), product)


def square_root(value: Number) -> Number:
    """Of a rational number that is not negative: a sqrt(n) with the squares taken out."""
    number = as_rational(value)
    if number is None or number < 0:
        raise UnreadableError
    product = number.numerator * number.denominator  # sqrt(p/q) is sqrt(pq)/q
    outside, inside = without_squares(product)
    return {(inside, 0): (Fraction(outside, number.denominator), Fraction(0))} if product else {}


def without_squares(number: int) -> tuple[int, int]:
    """(a, n) with number = a^2 n and n square-free.

    >>> without_squares(72), without_squares(10**40)
    ((6, 2), (100000000000000000000, 1))
    """
    root = math.isqrt(number)
    if root * root == number:
        return root, 1
    if number > MAX_RADICAND:
        raise UnreadableError
    outside, factor = 1, 2
    while factor * factor <= number:
        while number % (factor * factor) == 0:
            number //= factor * factor
            outside *= factor
        factor += 1
    return outside, number
