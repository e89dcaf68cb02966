r"""One spelling for what can be written in many: Unicode, spacing, fractions and separators of thousands.

What comes out is LaTeX that keeps its meaning: the row breaks of a matrix, a comma between elements and a
space between words stay. Every step is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "÷": "/", "∞": r"\infty ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ",
    "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}", "⟨": r"\langle ", "⟩": r"\rangle ", "⁄": "/", "∕": "/", "′": "'", "’": "'",
    "\u00a0": " ", "\u2009": r"\,", "\u202f": r"\,", "\u200b": "", "\ufeff": "", "\u2062": "", "\u2061": "",
    "π": r"\pi ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\varepsilon ",
    "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "µ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ",
    "τ": r"\tau ", "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Σ": r"\Sigma ", "Ω": r"\Omega ",
}  # fmt: skip
ROOTS = {"√": "", "∛": "[3]", "∜": "[4]"}
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni")
LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
REPLACEMENTS = (
    (r"\\left(?![a-z])\.?|\\right(?![a-z])\.?|\\(?:big|Big|bigg|Bigg)[lr]?(?![a-z])", ""),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"),
    (r"\\(?:displaystyle|limits|mathstrut)(?![a-zA-Z])", ""),
    (r"\\(?:mathrm|text)\s*\{\s*([ie])\s*\}", r"\1"),
    (r"\\(?:textrm|textbf|textit|textsf|texttt|mathrm|mathbf|mbox|operatorname|emph)(?=\s*\{)", r"\\text"),
    (r"\\(?:leq|leqslant)(?![a-z])", r"\\le"),
    (r"\\(?:geq|geqslant)(?![a-z])", r"\\ge"),
    (r"\\neq(?![a-z])", r"\\ne"),
    (r"\\(?:varnothing|O(?=\b))(?![a-z])", r"\\emptyset"),
    (r"\\(?:R|Reals|reals)(?![a-zA-Z])|\\(?:Bbb|mathbf)\s*(?:\{R\}|R)", r"\\mathbb{R}"),
    (r"\\langle(?![a-z])", "("),
    (r"\\rangle(?![a-z])", ")"),
    (r"\\lbrace(?![a-z])", r"\\{"),
    (r"\\rbrace(?![a-z])", r"\\}"),
    (r"\\(?:degree|textdegree)(?![a-z])", r"^\\circ "),
    (r"\^\s*\{\s*\\circ\s*\}|(?<=\d)\\circ(?![a-z])", r"^\\circ "),
    (r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\\\\\"),
    (r"\^\^", "^"),
    (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"(\\frac\s*\{[^{}]*\})\s*(\d)(?!\d)", r"\1{\2}"),
    (r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}"),
    (r"[(\[]\s*\\begin\{array\}\s*\{[^{}]*\}([^\[\]()]*?)\\end\{array\}\s*[)\]]",
     r"\\begin{pmatrix}\1\\end{pmatrix}"),
    (r"\\(begin|end)\{[bB]?(?:small)?matrix\}", r"\\\1{pmatrix}"),
)  # fmt: skip
SEPARATORS = (r"\{,\}", r",\\!", r"\{\\,\}", r"\\,", r"\\;", r"\\ ", "~")
GROUPED = [re.compile(rf"(?<![\d.,}}])[1-9]\d{{0,2}}(?:{s}\d{{3}})+(?!\d|{s}\d)") for s in SEPARATORS]
COMMA_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d|\.\d+,\d)|(?<=\$)\d{1,3}(?:,\d{3})+")
BARE_SET = re.compile(r"^\{([^{}]*,[^{}]*)\}$")  # {1,2} without the backslashes
REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{(\d{1,20})\}")
WHOLLY_TEXT = re.compile(r"^\\text\s*\{([^{}]*\d[^{}]*)\}$")  # \text{5 cm}: no words, but a quantity
SCIENTIFIC = re.compile(r"(?<![A-Za-z\d.\\{])(\d+\.?\d*|\.\d+)[eE]([+-]?\d{1,5})(?![\d.A-Za-z(\\])")


def one_spelling(text: str) -> str:
    """The same mathematics in plain LaTeX.

    >>> one_spelling("½ × 10²"), one_spelling(r"$1{,}234$"), one_spelling(r"3{,}14")
    ('\\\\frac{1}{2} \\\\times 10^{2}', '1234', '3.14')
    """
    text = without_dollars(ascii_mathematics(text))
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    for grouped in GROUPED:
        text = grouped.sub(lambda match: re.sub(r"\D", "", match.group()), text)
    text = re.sub(r"(?<![\d}.,])(\d+)\{,\}(\d+)(?!\d|\{,\})", r"\1.\2", text)  # a decimal comma
    text = text.replace("{,}", ",")
    text = WHOLLY_TEXT.sub(r"\1", spaces(REPEATING.sub(repeating, text)).strip())
    text = BARE_SET.sub(r"\\{\1\\}", text)
    if not text.endswith(".."):
        text = text.removesuffix(".").rstrip()
    return text


def repeating(match: re.Match[str]) -> str:
    r"""0.1\overline{6} as \frac{15}{90}: (16 - 1) / (10 * 9)."""
    whole, fixed, period = match.groups()
    above = int(whole + fixed + period) - int(whole + fixed or 0)
    return f"\\frac{{{above}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"


def ascii_mathematics(text: str) -> str:
    if text.isascii():
        return text
    text = re.sub(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+)", lambda m: f"^{{{m.group().translate(RAISED)}}}", text)
    text = re.sub(r"([₀₁₂₃₄₅₆₇₈₉]+)", lambda m: f"_{{{m.group().translate(LOWERED)}}}", text)
    text = re.sub(r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[A-Za-zπ]))", root, text)
    text = "".join(SYMBOLS.get(c) or vulgar_fraction(c) if not c.isascii() else c for c in text)
    return unicodedata.normalize("NFKC", text)


def root(match: re.Match[str]) -> str:
    return f"\\sqrt{ROOTS[match[1]]}{{{match[2] or match[3] or match[4] or ''}}}"


def vulgar_fraction(character: str) -> str:
    r"""\frac{1}{2} for ½; any other character as it is."""
    if character in SYMBOLS:
        return SYMBOLS[character]
    parts = unicodedata.normalize("NFKC", character).split("⁄")
    return f"\\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 and all(parts) else character


def without_dollars(text: str) -> str:
    r"""Without the marks of mathematics around all of it: $...$, $$...$$, \(...\), \[...\]."""
    text = text.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        long_enough = len(text) > len(opening) + len(closing)
        if long_enough and text.startswith(opening) and text.endswith(closing) and text[-2:] != r"\$":
            inside = text[len(opening) : -len(closing)]
            if closing not in inside:
                return inside.strip()
    return text


def spaces(text: str) -> str:
    r"""Spacing commands as spaces; `\\`, which breaks a row, stays."""
    text = re.sub(r"\\\\|\\[!,;:> ]|\\q?quad(?![a-z])|~|\\hspace\{[^{}]*\}", keep_row_break, text)
    return re.sub(r"\s+", " ", text)


def keep_row_break(match: re.Match[str]) -> str:
    if match.group() == r"\\":
        return r"\\"
    return "" if match.group() == r"\!" else " "


def without_thousands(text: str) -> str:
    """12,345 as 12345; `12, 345`, `1,2` and `12,345,67` stay lists."""
    return COMMA_GROUPED.sub(lambda match: match.group().replace(",", ""), text)


def without_scientific(text: str) -> str:
    """1e-5 as a power of ten; `5e` keeps Euler's number."""
    return SCIENTIFIC.sub(lambda m: rf"({m[1]} \cdot 10^{{{int(m[2])}}})", text)


def squeezed(text: str) -> str:
    """Without spaces that mean nothing; one between digits or letters does, and one in `12, 345`."""
    return re.sub(r"(?<![0-9A-Za-z,])\s+|\s+(?![0-9A-Za-z])|(?<=,)\s+(?!\d)", "", text)
