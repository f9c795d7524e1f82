"""The code of docs/engine.md: its site is exact, and used; its table is printed."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients import taps

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"


@pytest.mark.parametrize("slopes", [1, 4])
@pytest.mark.parametrize("views", [1, 2])
def test_the_site_of_the_page_is_exact(compare, monkeypatch, slopes, views):
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "Site" in block]
    assert len(code.splitlines()) < 60
    monkeypatch.setattr(taps, "HANDLERS", dict(taps.HANDLERS))
    exec(compile(code, str(PAGE), "exec"), {})
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.PReLU(slopes), nn.Flatten(), nn.Linear(16, 3)).double()
    gradient = compare(
        model, torch.randn(3, *([views] if views > 1 else []), 2, 6).double(), torch.arange(3), views=views
    )
    rows = gradient.explain(torch.zeros(2, *([views] if views > 1 else []), 2, 6, dtype=torch.float64)).rows
    assert "prelu" in [row.kind for row in rows]
    assert F.prelu in taps.HANDLERS


def test_the_explanation_of_the_page_is_printed(capsys):
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "explain" in block
    )
    exec(compile(code, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("B=4, K=1: ")
    assert "stem (bias, weight)" in printed
