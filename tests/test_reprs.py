"""What users hold says in one line what it is, and shows no figure that was measured on private data."""

import re
from dataclasses import replace
from pathlib import Path

import sfumato
from sfumato import search
from sfumato.privacy import Search
from sfumato.privacy.statements.display import rounded_up
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
    assert f"of {count:,} parameters to 4 classes, without a promise" in said(loaded)
    assert said(sfumato.verify(one_run.directory)).startswith("Verdict(holds, promises nothing, ")
    assert "3 x 4 logits" in said(sfumato.intervals(one_run.directory, spots.test.images[:3]))


def ranking(uncovered: Search | None, plan) -> search.Ranking:
    changes = ({"learning_rate": 0.1}, {"learning_rate": 0.5})
    rows = ({"change": changes[1], "accuracy": 0.912}, {"change": changes[0], "accuracy": 0.8})
    return search.Ranking(
        changes=changes,
        plans=(plan, plan),
        cost=COST,
        uncovered=uncovered,
        data_digests=(),
        rows=rows,
        best=changes[1],
        scored_on=40,
    )


NOT_COVERED = "not covered: together epsilon 4.500 at delta 0.001)"


def test_rankings_and_comparisons_show_accuracies_of_public_data_only(plan):
    assert said(ranking(None, plan)) == "Ranking(2 runs, best learning rate 0.5 with accuracy 91.2% of 40)"
    assert said(ranking(COST, plan)) == f"Ranking(2 runs, best learning rate 0.5; {NOT_COVERED}"
    assert said(replace(ranking(None, plan), rows=(), best={})) == "Ranking(2 runs, nothing was run)"
    rows = tuple({"change": change, "difference": gain} for change, gain in (({}, 0.0), ({"views": 4}, 0.031)))
    comparison = search.Comparison(
        changes=({}, {"views": 4}), plans=(plan, plan), uncovered=None, scored_on=40, rows=rows
    )
    assert said(comparison) == "Comparison(1 single changes, best views 4 by +3.1% on 40)"
    assert said(replace(comparison, uncovered=COST)) == f"Comparison(1 single changes; {NOT_COVERED}"
    assert said(replace(comparison, rows=())) == "Comparison(1 single changes)"


def test_curves_and_repeated_runs_show_accuracies_of_public_data_only(one_run: Run):
    cost = {"delta": 1e-5, "epsilon_of_all_uses": 4.0, "adjacency": "add-or-remove"}
    runs = tuple(replace(one_run, figures={**one_run.figures, "accuracy": value}) for value in (0.5, 0.75))
    curve = search.Repeated(runs=runs, budgets=(1.0, 3.0), is_public=True, promises=True, epsilon_of_all=3.5, **cost)
    assert said(curve) == "Repeated(epsilon 1: 50.0%, epsilon 3: 75.0%; together epsilon 3.500 at delta 1e-05)"
    assert (
        said(replace(curve, is_public=False)) == "Repeated(epsilon 1, epsilon 3; together epsilon 3.500 at delta 1e-05)"
    )
    repeated = search.Repeated(
        runs=(one_run, one_run),
        stored_runs=2,
        epsilon_of_all=12.0,
        delta=1e-3,
        epsilon_of_all_uses=12.0,
        adjacency="add-or-remove",
        adjacency_of_all_uses="add-or-remove",
    )
    assert (
        said(repeated) == "Repeated(2 runs; seeded, no guarantee; their plans together epsilon 12.000 at delta 0.001)"
    )
    found = said(replace(repeated, is_public=True))
    assert f"median accuracy {one_run.accuracy:.1%}, standard deviation 0.0%" in found
