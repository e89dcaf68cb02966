"""What tests in pytest's style use of pytest, for a sandbox that has no pytest.

The text of this file becomes the module `pytest` of the tests (module_tests.py). It imports nothing of this
package.
"""

import math


class ExceptionInfo:
    """`value` is the exception, once it was raised."""

    value = None


class raises:  # noqa: N801 - the name that tests use
    """`with pytest.raises(ValueError, match="..."):`, or a call: `pytest.raises(ValueError, f, 3)`."""

    def __init__(self, expected, function=None, *arguments, match=None, **keywords):
        self.expected, self.match, self.info = expected, match, ExceptionInfo()
        if function is not None:
            with self:
                function(*arguments, **keywords)

    def __enter__(self):
        return self.info

    def __exit__(self, kind, error, trace):
        import re

        if kind is None:
            raise AssertionError(f"did not raise {self.expected}")
        if not issubclass(kind, self.expected):
            return False
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"{error!r} does not match {self.match!r}")
        self.info.value, self.info.type = error, kind
        return True


class approx:  # noqa: N801 - the name that tests use
    """Equal within 1e-6 of the expected value or 1e-12, as pytest has it; in lists and dicts too."""

    def __init__(self, expected, rel=1e-6, abs=1e-12):
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other):
        return self.same(self.expected, other)

    __hash__ = None  # type: ignore[assignment]

    def same(self, expected, other):
        if isinstance(expected, dict):
            return (
                isinstance(other, dict)
                and expected.keys() == other.keys()
                and all(self.same(value, other[key]) for key, value in expected.items())
            )
        if isinstance(expected, list | tuple):
            return (
                isinstance(other, list | tuple)
                and len(expected) == len(other)
                and all(map(self.same, expected, other))
            )
        if not isinstance(other, int | float | complex):
            return False
        if expected == other:
            return True
        far = abs(expected - other)
        return math.isfinite(far) and far <= max(self.rel * abs(expected), self.abs)


class Mark:
    """`@pytest.mark.slow` and its kin change nothing; parametrize is read from the text of the tests."""

    def __getattr__(self, name):
        def decorate(*arguments, **keywords):
            bare = len(arguments) == 1 and not keywords and callable(arguments[0])
            return arguments[0] if bare else lambda test: test

        return decorate


mark = Mark()


def param(*values, **keywords):
    """One row of parametrize, whatever it is called."""
    return values if len(values) > 1 else values[0]
