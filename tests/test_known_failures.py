"""Failures that users of other engines really hit, by number: each has a test whose docstring names it.

Groups: A tokenizers, B templates, C tool calls, D streaming and HTTP, E reasoning, F files, G quants and numbers, H expert cache and I/O,
P platform, Q rope, attention and mixers. Not here: P13, a detector of repetition, which moegg has not: `--repeat-penalty` is the user's choice.
"""
import ast
import re
from pathlib import Path

import pytest

IDS = ("A1 A2 A4 A5 A6 A7 A8 A9 A10 B2 B3 B4 B5 B8 C1 C2 C3 C4 C5 C7 C10 C12 C13 D1 D2 D4 D7 D8 D10 D11 D12 D14 D16 D17 D18 D20 D21 D22 "
       "D23 D24 E1 E4 E5 F1 F5 F6 F8 F9 F10 F15 G1 G3 G4 G6 G7 G8 G9 G10 G11 G12 G13 G16 H1 H2 H3 H4 H5 H8 H9 H10 H13 H15 H16 H17 H18 H19 "
       "H21 P1 P4 P5 P7 P8 P9 P11 Q2 Q4 Q5 Q7 Q8 Q12 Q13 Q14 Q15 Q17 Q18 Q19 Q21").split()


@pytest.fixture(scope="module")
def named():
    """Numbers in the docstrings of tests."""
    found = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found |= set(re.findall(r"\b[A-Z]\d{1,2}\b", ast.get_docstring(node) or ""))
    return found


@pytest.mark.parametrize("number", IDS)
def test_a_known_failure_has_a_test(number, named):
    assert number in named
