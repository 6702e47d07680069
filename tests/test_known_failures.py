"""Failures that users of other engines really hit, by number: each has a test whose docstring names it.

Groups: B templates, C tool calls, D streaming and HTTP, E reasoning, H expert cache and I/O, Q rope, attention and mixers.
"""
import ast
import re
from pathlib import Path

import pytest

IDS = ("B2 B3 B4 B5 B8 C1 C2 C3 C4 C5 C7 C10 C12 C13 D1 D2 D4 D7 D8 D10 D11 D12 D14 D16 D17 D18 D20 D21 D22 D23 D24 E1 E4 E5 "
       "H1 H2 H3 H4 H5 H8 H9 H10 H13 H15 H16 H17 H18 H19 H21 Q2 Q4 Q5 Q7 Q8 Q12 Q13 Q14 Q15 Q17 Q18 Q19 Q21").split()


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
