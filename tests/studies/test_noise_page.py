import re

import pytest

from studies.weight_noise.page import accuracy_cell, page_of_noise, slowdown_cell


def cell(model, deviation, accuracy, *, converges=True, slowdown=1.0, curve=((1.0, 0.5), (2.0, 0.9))):
    return {
        "model": model,
        "deviation": deviation,
        "learning_rate": 0.1,
        "accuracies": [accuracy],
        "accuracy": accuracy,
        "standard_error": 0.001,
        "converged": int(converges),
        "converges": converges,
        "epochs_to_share": slowdown,
        "slowdown": slowdown,
        "curve": curve,
    }


def study(**changes):
    cells = [
        cell("m<b>", 0.0, 0.9812),
        cell("m<b>", 10.0, 0.1, converges=False, slowdown=None),
        cell("m,norm=layer,norm_last=1", 0.0, 0.9),
        cell("m,norm=layer,norm_last=1", 10.0, 0.8, slowdown=6.94, curve=()),
    ]
    design = {"models": ["m<b>"], "deviations": [0.0, 10.0], "share": 0.95, "runs": 3, "seed": 0, "epochs": 2}
    design |= {"batch_size": 128, "schedule": "cosine", "learning_rates": [0.1], "shift": 0, "flip": False}
    return {
        "public": True,
        "statement": "Nothing here is private.",
        "rule": "No convergence: rule.",
        "source": "npz",
        "test_examples": 1000,
        "design": design,
        "cells": cells,
        **changes,
    }


def test_the_page_has_tables_curves_and_the_statement():
    page = page_of_noise(study())
    assert "<td>98.12 ± 0.10</td><td>no convergence</td>" in page
    assert "<td>1.0</td><td>6.9</td>" in page
    assert "Nothing here is private." in page
    assert page.count('<svg class="plot"') == 2
    assert "m&lt;b&gt;" in page
    assert "m<b>" not in page
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_private_data_are_marked():
    assert "<p class=statement>" in page_of_noise(study(public=False))
    assert "<p class=statement>" not in page_of_noise(study())


@pytest.mark.parametrize(
    ("shown", "cell", "text"),
    [
        (accuracy_cell, {"converges": True, "accuracy": 0.5, "standard_error": None}, "50.00"),
        (accuracy_cell, {"converges": False, "accuracy": 0.5, "standard_error": 0.1}, "no convergence"),
        (slowdown_cell, {"slowdown": None}, "-"),
    ],
)
def test_cells(shown, cell, text):
    assert shown(cell) == text
