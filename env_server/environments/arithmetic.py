"""Arithmetic expressions, parsed by hand and computed exactly: digits, + - * /, parentheses and blanks, nothing else.

expression := product (("+" | "-") product)*
product    := operand (("*" | "/") operand)*
operand    := NUMBER | "(" expression ")"
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DEPTH = 20
MAX_DIGITS = 9

_TOKEN = re.compile(r"[ \t]*([0-9]+|[-+*/()])", re.ASCII)


class ExpressionError(ValueError):
    """The text is no expression, or has no value; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression comes to."""

    number: Fraction
    operands: tuple[int, ...]
    """The numbers in it, in order."""


def evaluate(text: str) -> Value:
    """Raise `ExpressionError` unless the whole text is an expression with a value."""
    parser = _Parser(_tokens(text))
    number = parser.expression(0)
    if parser.next:
        raise ExpressionError("That is not an arithmetic expression.")
    return Value(number, tuple(parser.operands))


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    text = text.rstrip(" \t")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError("Only numbers, + - * / and parentheses are allowed.")
        tokens.append(match[1])
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self.operands: list[int] = []

    @property
    def next(self) -> str:
        """The token to be read; empty at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def expression(self, depth: int) -> Fraction:
        """Read sums and differences of products."""
        number = self._product(depth)
        while self.next in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            number += sign * self._product(depth)
        return number

    def _product(self, depth: int) -> Fraction:
        number = self._operand(depth)
        while self.next in ("*", "/"):
            is_product = self._take() == "*"
            operand = self._operand(depth)
            if is_product:
                number *= operand
            elif operand:
                number /= operand
            else:
                raise ExpressionError("That divides by zero.")
        return number

    def _operand(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"Parentheses are nested more than {MAX_DEPTH} deep.")
        token = self._take()
        if token == "(":
            number = self.expression(depth + 1)
            if self._take() != ")":
                raise ExpressionError("A parenthesis is not closed.")
            return number
        if not token.isdigit():
            raise ExpressionError("That is not an arithmetic expression.")
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"A number has more than {MAX_DIGITS} digits.")
        self.operands.append(int(token))
        return Fraction(int(token))

    def _take(self) -> str:
        token = self.next
        self._at += 1
        return token
