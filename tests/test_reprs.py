"""What users hold says in one line what it is, and shows no figure that was measured on private data."""

import re
from dataclasses import replace
from pathlib import Path

import sfumato
from sfumato import search
from sfumato.experiment import Experiment
from sfumato.privacy import Search
from sfumato.privacy.statements.display import rounded_up
from sfumato.randomness import Choice
from sfumato.runs import Run
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import read

LONGEST = 300
COST = Search(runs=2, epsilon=4.5, delta=1e-3)


def said(one: object) -> str:
    """The repr, which must be short and one line whatever it is of."""
    text = repr(one)
    assert len(text) < LONGEST, text
    assert "\n" not in text
    assert "tensor(" not in text
    assert "array(" not in text
    return text


def test_a_private_run_shows_no_figure_but_in_its_card(one_run: Run):
    accuracy = f"{one_run.accuracy:.1%}"
    assert accuracy not in said(one_run)
    assert "made from a seed, no guarantee; its plan (" in said(one_run)
    card = one_run._repr_html_()
    assert accuracy in card
    assert "Measured on private data: keep it to yourself" in card
    assert one_run.statement.sentence in card
    assert not re.search(r"<script|https?:|src=", card)


def test_a_public_run_shows_its_accuracy(tmp_path: Path):
    run = sfumato.train(
        "linear", "digits", noise_multiplier=8.0, steps=4, batch_size=512, directory=tmp_path / "digits"
    )
    assert f"test accuracy {run.accuracy:.1%}" in said(run)
    assert "private data" not in run._repr_html_()
    assert said(read(RunDirectory(run.directory))) == said(run)
    assert "(<b>)" not in replace(run, directory=Path("(<b>)"))._repr_html_()
    without = sfumato.pretrain(
        "linear", "digits", directory=tmp_path / "public", learning_rate=0.05, steps=4, batch_size=128
    )
    assert said(without).endswith("without privacy)")
    assert f"{without.accuracy:.1%}" in without._repr_html_()
    assert "no privacy guarantee" in without._repr_html_()


def test_a_plan_a_statement_a_model_a_source_and_a_verdict(one_run: Run, spots, plan):
    assert said(spots) == "Source(npz, private: 200 images of 8 x 8 pixels in grey to train on, 4 classes)"
    assert said(plan) == (
        "PrivacyPlan(12 steps, each example drawn into each step with probability 0.25 of N = 200, clipping norm 1, "
        f"noise multiplier {plan.noise_multiplier:g} (gaussian), delta 0.001, add-or-remove one example)"
    )
    epsilon = rounded_up(plan.epsilon())
    assert said(one_run.statement) == (
        f"Statement(made from a seed, no guarantee; its plan ({epsilon}, 0.001), add-or-remove; plan "
        f"{plan.fingerprint[:16]})"
    )
    loaded = one_run.load()
    count = sum(parameter.numel() for parameter in loaded.module.parameters())
    assert f"of {count:,} parameters to 4 classes, without a guarantee" in said(loaded)
    assert said(sfumato.verify(one_run.directory)).startswith("Verdict(holds, no guarantee, ")
    assert "3 x 4 logits" in said(sfumato.intervals(one_run.directory, spots.test.images[:3]))


def test_sweeps_show_accuracies_of_public_data_only(plan):
    trial, changes = search.Trial(experiment=Experiment(), source="digits"), ({"views": 1}, {"views": 4})
    rows = ({"views": 4, "accuracy": 0.912}, {"views": 1, "accuracy": 0.8})
    space = {"views": Choice(values=(1, 4))}
    known = {"changes": changes, "plans": (plan, plan), "cost": COST, "promises": True}
    ranked = search.Sweep(
        trials=search.Grid(trial, space), search="public", rows=rows, best=changes[1], is_public=True, **known
    )
    assert said(ranked) == "Sweep(2 runs, best views 4 with accuracy 91.2%; public data)"
    cost = "together epsilon 4.500 at delta 0.001"
    assert said(replace(ranked, search="uncovered", is_public=False)) == f"Sweep(2 runs; {cost})"
    assert said(replace(ranked, rows=())) == "Sweep(2 runs; public data)"
    repeated = search.Sweep(trials=search.Seeds(trial, 2), rows=rows, **known)
    assert said(repeated) == f"Sweep(2 runs; {cost})"
    seeded = replace(repeated, is_public=True, promises=False)
    figures = "median accuracy 85.6%, standard deviation 7.9%"
    assert said(seeded) == f"Sweep(2 runs, {figures}; seeded, no guarantee; their plans {cost})"
    assert said(replace(repeated, cost=None)) == "Sweep(2 runs; no guarantee)"
