"""When printed text and returned data are what was expected."""

from __future__ import annotations

import math
import random

import pytest

from hardwon.verifiers.outputs import same_data, same_text


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("1 2", "1 2\n"),
        ("1 2\n", "1 2 \n\n\n"),
        ("1\r\n2\r\n", "1\n2"),
        ("1 2", "1 \t 2"),
        ("1", "   1"),
        ("1\n2", "1\n\n2"),
        ("1\n\n2", "1\n2"),
        ("", "\n"),
        ("3", "3.0"),
        ("3.0", "3"),
        ("3", "3e0"),
        ("1000000", "1e6"),
        ("0.333333333333", "0.333333"),
        ("1e-7", "0"),
        ("-0.0", "0"),
        (".5", "0.5"),
        ("5.", "+5"),
        ("1234567.1", "1234567.9"),  # 1e-6 of the expected value is 1.2
        ("1e300", "1.0000001e300"),
        ("1e9999", "1.0e9999"),  # beyond every float
        ("x 0.5 y", "x 0.50000001 y"),
        ("nan inf", "nan inf"),  # text like any other
        ("Yes", "Yes"),
        ("9" * 10_000, "9" * 10_000),
        ("9" * 10_000 + ".0", "9" * 10_000),
    ],
)
def test_right_text(expected, printed):
    assert same_text(expected.encode(), printed.encode())


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("1 2 3", "1\n2\n3"),
        ("1\n2", "1 2"),
        ("12", "1 2"),
        ("1", "1 1"),
        ("1", ""),
        ("", "1"),
        ("1\n2", "1\n2\n3"),
        ("1\n2\n3", "1\n2"),
        ("YES", "Yes"),
        ("7", "007"),
        ("007", "7"),
        ("5", "+5"),
        ("0", "-0"),
        ("1000000000000000001", "1000000000000000000"),
        ("1000000000000000001", "1e18"),  # a float where a whole number is wanted
        ("1000000007", "1000000006.0"),
        ("1000000", "1000000.5"),
        ("9" * 10_000, "9" * 9_999 + "8"),
        ("0.333333333333", "0.334"),
        ("0.5", "0.500002"),
        ("1e-3", "0"),
        ("2.5", "2"),
        ("0.5", "nan"),
        ("nan", "0.5"),
        ("nan", "NaN"),
        ("0.5", "inf"),
        ("1e9999", "inf"),
        ("1e300", "inf"),
        ("1.0", "1,0"),
        ("1.0", "1.0f"),
        ("1.5", "1.5e"),
        ("1000.0", "1_000.0"),
        ("16.0", "0x10"),
        ("1.0", "１.0"),  # a full-width digit
        ("1.2.3", "1.2.30"),
        ("1.0", "1e" + "9" * 50),
        ("1.0", "True"),
        ("a b", "a\u00a0b"),  # a blank that joins
    ],
)
def test_wrong_text(expected, printed):
    assert not same_text(expected.encode(), printed.encode())


def test_tolerance_is_neither_wider_nor_narrower_than_said():
    generator = random.Random(0)
    for _ in range(2000):
        value = generator.choice([generator.uniform(-2, 2), generator.uniform(-1e9, 1e9)])
        share = generator.uniform(0, 2)
        other = value + generator.choice([-1, 1]) * share * 1e-6 * max(1, abs(value))
        if abs(share - 1) > 1e-6:  # rounding decides what is nearer than that to the border
            assert same_text(repr(value).encode(), repr(other).encode()) == (share < 1), (value, other)
            assert same_data([value], [other]) == (share < 1)


def test_long_text_takes_linear_time():
    ones = b"1\n" * 1_000_000
    assert same_text(ones, ones.replace(b"\n", b" \n"))
    assert not same_text(b"1." + b"0" * 3_000_000 + b"1", b"2." + b"0" * 3_000_000)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (3, 3.0),
        (3.0, 3),
        (0.1, 0.1 * 3 - 0.2),
        ([1 / 3, [2 / 3]], [0.3333333, [0.6666666]]),
        ({"a": [0.5]}, {"a": [0.5 + 1e-9]}),
        (math.inf, math.inf),
        (None, None),
        ("0.5", "0.5"),
        ([], []),
        (True, True),
    ],
)
def test_right_data(expected, found):
    assert same_data(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (0.1, 0.101),
        ([1 / 3, 2 / 3], [2 / 3, 1 / 3]),
        ([1, 2], [1, 2, 3]),
        ([[1]], [1]),
        (1, True),
        (True, 1),
        (False, 0),
        (0, None),
        (None, False),
        ([], None),
        ("1", 1),
        ("0.5", "0.50"),  # text, though it looks like a number
        (math.nan, math.nan),
        (0.5, math.nan),
        (math.inf, 1e308),
        (1e308, math.inf),
        (math.inf, -math.inf),
        (2**53 + 1, float(2**53)),
        (1_000_000_007, 1_000_000_006.0),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, ["a"]),
    ],
)
def test_wrong_data(expected, found):
    assert not same_data(expected, found)


def test_integers_of_any_size():
    long = 10**5000  # more digits than Python converts to and from text
    assert same_data([long], [long]) and not same_data([long], [long + 1])
    assert not same_data(long, 0.5) and not same_data(0.5, long)
