"""Runs on data sets that have records in common, which the list of uses takes for different ones, are told of."""

from __future__ import annotations

import os

import numpy as np
import pytest

import sfumato
from sfumato import PrivacyPlan, SfumatoError, embed, open_source, owner_key, record_use
from sfumato.data import hold_out
from sfumato.observers.progress import Progress
from sfumato.runs.owner import overlap, uses

PLAN = PrivacyPlan.calibrate(examples=40, batch_size=40, steps=2, epsilon=3.0, delta=1e-5)


class Heard(Progress):
    said = ""

    def report(self, text: str) -> None:
        self.said += f"{text}\n"


def opened(path, images, **options):
    np.savez(path, x=images, y=np.arange(len(images)) % 2)
    return open_source(f"npz:{path}", owner_key=owner_key(), **options)


def used(source, name, **options):
    overlap.remember(source)
    uses.record(source.materials, name, PLAN, places=source.places, name=f"runs/{name}", **options)


def test_a_part_and_a_changed_copy_are_known_by_their_records(images, tmp_path):
    whole = opened(tmp_path / "whole.npz", images)
    assert [*overlap.notes(whole)] == []
    used(whole, "first")
    part = opened(tmp_path / "part.npz", images[:30])
    (note,) = overlap.notes(part)
    count = len(part.train)
    assert f"{count} of these {count} training records (100%) were used by 1 run of yours on another data set" in note
    assert "(runs/first)" in note
    assert "\n" not in note
    changed = images.copy()
    changed[:40] = 255 - changed[:40]
    copy = opened(tmp_path / "changed.npz", changed)
    (note,) = overlap.notes(copy)
    before = {image.tobytes() for image in whole.train.images}
    common = sum(image.tobytes() in before for image in copy.train.images)
    assert 0 < common < len(copy.train)
    assert f"note: {common} of these {len(copy.train)} training records" in note
    used(part, "second")
    (note,) = overlap.notes(copy)
    assert "used by 1 run of yours" in note  # the part holds none of what the copy kept
    (note,) = overlap.notes(whole)
    assert f"note: {count} of these {len(whole.train)} training records" in note


def test_what_is_counted_already_and_what_is_public_is_not_told_of(images, tmp_path):
    whole = opened(tmp_path / "whole.npz", images)
    used(whole, "first")
    used(whole, "again")
    assert [*overlap.notes(whole)] == []  # the totals have these
    colour = opened(tmp_path / "colour.npz", np.repeat(images[..., None], 3, -1))
    assert whole.stored_digest != colour.stored_digest
    assert [*overlap.notes(colour)] == []  # and these: the pixels are the same
    assert [*overlap.notes(opened(tmp_path / "other.npz", 255 - images))] == []
    assert [*overlap.notes(opened(tmp_path / "public.npz", images[:30], public=True))] == []


def test_of_one_data_set_those_runs_are_told_of_that_no_total_has(images, tmp_path):
    """The place of one is the place of these data; the other one ran on a copy elsewhere."""
    (tmp_path / "b").mkdir()
    first, copy = opened(tmp_path / "a.npz", images), opened(tmp_path / "b" / "copy.npz", images)
    assert first.materials == copy.materials
    used(first, "here")
    used(copy, "elsewhere")
    changed = opened(tmp_path / "a.npz", images[:30])
    assert len(uses.plans(changed.materials, places=changed.places)) == 1
    (note,) = overlap.notes(changed)
    assert "1 run of yours on another data set (runs/elsewhere)" in note


def test_records_held_out_to_score_on_are_remembered_and_looked_for(images, tmp_path):
    rest, held = hold_out(opened(tmp_path / "whole.npz", images), owner_key(), 0.4)
    used(rest, "search")
    others = np.random.default_rng(1).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    part = opened(tmp_path / "part.npz", np.concatenate([held.images[..., 0], others]))
    among = {image.tobytes() for image in held.images}
    common = sum(image.tobytes() in among for image in part.train.images)
    assert common > 0
    (note,) = overlap.notes(part)
    assert f"note: {common} of these {len(part.train)} training records" in note
    small = opened(tmp_path / "small.npz", np.concatenate([images[:9], others]))
    used(small, "small")
    (note,) = overlap.notes(rest)
    assert f"of these {len(rest.train) + len(held)} training and validation records" in note


def test_only_the_owner_reads_the_codes_and_public_data_have_none(images, tmp_path):
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5}
    opened(tmp_path / "whole.npz", images)
    public = opened(tmp_path / "whole.npz", images, public=True)
    assert record_use(public, PLAN).run == ""
    sfumato.train("linear", public, directory=tmp_path / "public", **how)
    folder = tmp_path / "home" / overlap.FOLDER
    assert not folder.exists()
    with pytest.raises(SfumatoError, match="noise_multiplier"):
        sfumato.train(
            "linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "none", **how | {"noise_multiplier": -1}
        )
    assert not folder.exists()
    run = sfumato.train("linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "run", **how)
    assert len([*folder.glob("*.npy")]) == 1
    if os.name == "posix":
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (codes,) = (np.load(path) for path in folder.glob("*.npy"))
    for path in (path for path in run.directory.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(half in content or half.hex().encode() in content for code in codes for half in _halves(code))


def _halves(code):
    return code[:16].tobytes(), code[16:].tobytes()


def test_a_loop_built_from_pieces_is_told_once_it_is_recorded(images, tmp_path):
    assert record_use(opened(tmp_path / "whole.npz", images), PLAN).note == ""
    told = record_use(opened(tmp_path / "part.npz", images[:30]), PLAN)
    assert told.note.startswith("note: ")
    assert "were used by 1 run of yours on another data set (a loop of one's own)" in told.note
    again = record_use(opened(tmp_path / "part.npz", images[:30]), PLAN, run=told.run)
    assert again.note == told.note


def test_embeddings_say_it_beforehand_and_write_it_nowhere(tmp_path, images):
    people = np.arange(60) // 3
    for name, count in (("whole", 60), ("part", 45)):
        np.savez(tmp_path / f"{name}.npz", x=images[:count], y=people[:count] % 10, users=people[:count].astype(str))
    quick = {"steps": 1, "batch_size": 4, "clients": 2, "noise_multiplier": 2.0, "threads": 1, "device": "cpu"}
    heard = Heard()
    for name in ("whole", "part"):
        place = tmp_path / "runs" / name
        embed(f"npz:{tmp_path}/{name}.npz", directory=place, model="linear", progress=heard, **quick)
        assert ("used by 1 run of yours on another data set (runs/whole)" in heard.said) == (name == "part")
        written = (path.read_bytes() for path in place.rglob("*") if path.is_file())
        assert not any(b"on another data set" in content for content in written)


def test_a_run_that_was_cut_before_its_line_is_not_told_of(images, tmp_path, monkeypatch):
    """Its codes are there, and no total needs them."""

    def cut(*given, **named):
        raise KeyboardInterrupt

    opened(tmp_path / "whole.npz", images)
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5}
    monkeypatch.setattr(uses, "record", cut)
    with pytest.raises(KeyboardInterrupt):
        sfumato.train("linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "run", **how)
    assert [*(tmp_path / "home" / overlap.FOLDER).glob("*.npy")]
    part = opened(tmp_path / "part.npz", images[:30])
    assert [*overlap.notes(part)] == []


def test_runs_within_the_same_budget_count_together(images, tmp_path):
    used(opened(tmp_path / "whole.npz", images), "first", budget="faces")
    part = opened(tmp_path / "part.npz", images[:30])
    assert [*overlap.notes(part, budget="faces")] == []
    assert len([*overlap.notes(part, budget="others")]) == len([*overlap.notes(part)]) == 1


def test_a_loop_of_ones_own_says_it_of_its_tensors(images, tmp_path):
    import torch

    def run(count, name):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.from_numpy(images[:count] / 255).float(), torch.arange(count) % 2
        plan = {"noise_multiplier": 2.0, "batch_size": 10, "steps": 1, "delta": 1e-5}
        own = sfumato.private_steps(model, optimizer, data, directory=tmp_path / name, **plan)
        assert len([*own]) == 1
        return own.note

    assert "another data set" not in run(60, "whole")
    assert "20 of these 20 training records (100%) were used by 1 run of yours on another data set" in run(20, "part")


def test_training_says_it_beforehand(images, tmp_path):
    heard = Heard()
    opened(tmp_path / "whole.npz", images)
    opened(tmp_path / "part.npz", images[:40])
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5, "progress": heard}
    sfumato.train("linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "runs" / "a", **how)
    assert "on another data set" not in heard.said
    sfumato.train("linear", f"npz:{tmp_path}/part.npz", directory=tmp_path / "runs" / "b", **how)
    assert "were used by 1 run of yours on another data set (runs/a)" in heard.said
    written = (path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert not any(b"on another data set" in content for content in written)
