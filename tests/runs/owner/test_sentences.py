"""What the owner is told before a run of any kind: of runs on other data sets that hold some of its records."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato import PrivacyPlan, SfumatoError, embed, open_source, train
from sfumato.observers.progress import Progress
from sfumato.privacy import User
from sfumato.runs.owner import budgets, uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.training.conclusion import run_report


class Heard(Progress):
    said = ""

    def report(self, text: str) -> None:
        self.said += f"{text}\n"


def test_embeddings_say_it_beforehand_and_write_it_nowhere(tmp_path, images):
    people = np.arange(60) // 3
    for name, count in (("whole", 60), ("part", 45)):
        np.savez(tmp_path / f"{name}.npz", x=images[:count], y=people[:count] % 10, users=people[:count].astype(str))
    quick = {"steps": 1, "batch_size": 4, "clients": 2, "noise_multiplier": 2.0, "threads": 1, "device": "cpu"}
    heard = Heard()
    for name in ("whole", "part"):
        place = tmp_path / "runs" / name
        embed(f"npz:{tmp_path}/{name}.npz", directory=place, model="linear", progress=heard, **quick)
        found = "used by 1 run of yours on another data set (runs/whole). No total has both." in heard.said
        assert found == (name == "part")
        written = (path.read_bytes() for path in place.rglob("*") if path.is_file())
        assert not any(b"on another data set" in content for content in written)


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
    assert "20 of these 20 records (100%) were used by 1 run of yours on another data set" in run(20, "part")


def test_training_says_it_beforehand(images, tmp_path):
    heard = Heard()
    for name, count in (("whole", 60), ("part", 40)):
        np.savez(tmp_path / f"{name}.npz", x=images[:count], y=np.arange(count) % 2)
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5, "progress": heard}
    sfumato.train("linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "runs" / "a", **how)
    assert "on another data set" not in heard.said
    sfumato.train("linear", f"npz:{tmp_path}/part.npz", directory=tmp_path / "runs" / "b", **how)
    assert "were used by 1 run of yours on another data set (runs/a)" in heard.said
    written = (path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert not any(b"on another data set" in content for content in written)


PLAN = PrivacyPlan.calibrate(examples=40, batch_size=40, steps=2, epsilon=3.0, delta=1e-5)


def archive(path, images: int):
    """A private archive whose training part has so many images."""
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    kept = np.r_[:images, 50:60]
    pixels, labels = pixels[kept], labels[kept]
    np.savez(path, x_train=pixels[:images], y_train=labels[:images], x_test=pixels[images:], y_test=labels[images:])
    return open_source(f"npz:{path}", owner_key=bytes(32), examples=40)


def test_a_changed_set_is_known_by_its_path_whoever_opened_it(tmp_path):
    """One image is taken out between two runs: other records, the same people."""
    path = tmp_path / "people.npz"
    train("linear", archive(path, 41), PLAN, directory=tmp_path / "one", learning_rate=0.1)
    changed = archive(tmp_path / "." / "people.npz", 40)
    second = train("linear", changed, PLAN, directory=tmp_path / "two", learning_rate=0.1)
    assert second.uses == 2
    assert second.joint_cost == budgets.joint_cost([PLAN, PLAN])
    page = (second.directory / "report.html").read_text("utf-8")
    assert "At least 2 runs of yours have used these data" in page
    other = train(None, f"npz:{path}", epsilon=1.0, steps=2, directory=tmp_path / "three")
    assert other.uses == 3
    moved = archive(tmp_path / "elsewhere.npz", 39)
    assert train("linear", moved, PLAN, directory=tmp_path / "four", learning_rate=0.1).uses == 1


def use(source, plan, run: str) -> list[str]:
    """Puts a run on the list; the notes that its owner sees before."""
    data = DataIdentity.from_source(source)
    notes = [*uses.notes_before(data, plan, seeded=False)]
    uses.record(data, plan, run=run, name=f"run {run}")
    return notes


def test_another_plan_under_one_identity_is_refused_and_the_list_stays_readable(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    use(source, PLAN, "first")
    with pytest.raises(SfumatoError, match="is on the list of uses with another plan"):
        use(source, replace(PLAN, steps=1), "first")
    assert uses.earlier_uses(DataIdentity.from_source(source)).plans == [PLAN]


def test_data_that_were_private_are_not_public_without_a_note(tmp_path):
    source = archive(tmp_path / "people.npz", 40)
    use(source, PLAN, "first")
    note = uses.declared_public_note(replace(source, public=True))
    assert note is not None
    assert "declared public, but 1 run of yours used them as private" in note


def of_users(path, users: int):
    """The same images each time, of so many users in turn."""
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    of, labels = np.array([f"p{place % users}" for place in range(50)]), np.arange(50) % 2
    parts = {"train": slice(40), "test": slice(40, 50)}
    columns = {"x": images, "y": labels, "users": of}
    np.savez(path, **{f"{name}_{part}": one[rows] for name, one in columns.items() for part, rows in parts.items()})
    return open_source(f"npz:{path}", owner_key=bytes(32))


FOR_USERS = PrivacyPlan.calibrate(examples=10, batch_size=5, steps=2, noise_multiplier=1.0, delta=1e-3, unit=User())


def test_uses_for_users_who_are_told_apart_otherwise_are_never_passed_over_in_silence(tmp_path):
    source, other = of_users(tmp_path / "ten.npz", 10), of_users(tmp_path / "twenty.npz", 20)
    assert use(source, FOR_USERS, "first") == []
    count, users, *_ = use(other, FOR_USERS, "second")
    assert count.startswith("note: 1 earlier run of yours used these data; together with this one")
    told = "1 earlier run of yours assigned these records to other users: the total is for a person who is one user"
    assert users.startswith(f"note: {told}")
    count, users, *_ = use(other, FOR_USERS, "third")
    assert count.startswith("note: 2 earlier runs of yours used these data")
    assert told in users
    public = uses.declared_public_note(replace(other, public=True, assignment=""))
    assert public is not None
    assert "3 runs of yours used them as private" in public
    data = dict(zip(("material", "pixels"), other.data_digests, strict=True))
    total, line = run_report.joint_cost_lines(
        {"data": data, "request": {}, "places": [], "assignment": "of nobody"}, FOR_USERS
    )
    assert total.startswith("At least 3 runs of yours have used these data")
    assert line.startswith("3 other runs of yours assigned these records to other users"), (
        "the owner's page says so too"
    )


def test_data_behind_a_link_are_known_by_the_link_too(tmp_path):
    """A link to the newest version of a set leads elsewhere tomorrow, and much of it is the same people."""
    link = tmp_path / "newest.npz"
    for version, images in (("first.npz", 41), ("second.npz", 40)):
        archive(tmp_path / version, images)
        link.unlink(missing_ok=True)
        link.symlink_to(version)
        notes = use(open_source(f"npz:{link}", owner_key=bytes(32), examples=40), PLAN, version)
    assert "1 earlier run of yours used these data" in notes[0]


def test_it_is_told_of_runs_on_other_data_sets_that_hold_its_records(tmp_path):
    assert use(archive(tmp_path / "whole.npz", 41), PLAN, "whole") == []
    (told,) = use(archive(tmp_path / "part.npz", 40), PLAN, "part")
    assert "40 of these 40 records (100%) were used by 1 run of yours on another data set (run whole" in told
