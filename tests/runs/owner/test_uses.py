"""The owner's list of runs: data are known again, and what was used on them is counted."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato import PrivacyPlan, SfumatoError, open_source, owner_key
from sfumato.data import hold_out
from sfumato.privacy import PrivateChoice, User
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.lines import DataIdentity

PLAN = PrivacyPlan.calibrate(examples=40, batch_size=40, steps=2, epsilon=3.0, delta=1e-5)


def steps(*materials: str, places=()) -> list[int]:
    return [found.steps for found in uses.earlier_uses(DataIdentity(materials, tuple(places))).plans]


@pytest.fixture
def record(plan):
    def record(materials: tuple[str, ...], run: str, steps: int, *places: str, **others) -> None:
        uses.record(DataIdentity(materials, places), plan(steps), run=run, **others)

    return record


def test_data_are_known_again_by_what_is_stored_or_by_their_pixels(record):
    record(("files", "pixels"), "run1", 50)
    record(("arrays", "pixels"), "run2", 60)
    record(("files",), "run3", 70)
    record(("files",), "run3", 70)
    known = [
        steps(*names) for names in (("files", "pixels"), ("arrays", "pixels"), ("files",), ("pixels",), ("x", "y"))
    ]
    assert known == [[50, 60, 70], [50, 60], [50, 70], [50, 60], []]


def test_data_are_known_again_by_their_place_and_by_where_features_came_from(record):
    record(("a",), "run1", 50, "features:/old", "folder:/pictures")
    record(("b",), "run2", 60, "folder:/others")
    record(("d",), "run3", 70)
    for places, found in (
        (["folder:/pictures"], [50]),
        (["features:/new", "folder:/pictures"], [50]),
        (["features:/old"], [50]),
        (["features:/new"], []),
        ([""], []),
    ):
        assert steps("c", places=places) == found


def test_data_sets_of_one_name_count_together(record):
    record(("a",), "run1", 50, "name:faces")
    record(("b",), "run2", 60, "name:faces")
    record(("b",), "run3", 70, "folder:/b")
    record(("c",), "run4", 80)
    assert steps("a") == steps("b") == steps(places=["name:faces"]) == [50, 60, 70]
    assert steps("c") == [80]


def test_figures_and_choices_about_test_images_are_added_up(record):
    record(("a",), "run1", 50, figures=0.5)
    record(("a",), "run2", 60)
    record(("b",), "run3", 70, "folder:/pictures", figures=4.0)
    record(("a",), "run4", 70, figures=0.75)
    record(("a",), "run4", 70, figures=0.25)
    record(("a",), "run4", 70)
    for _ in range(2):
        uses.record_choice(DataIdentity(("a",)), PrivateChoice(epsilon=0.25, candidates=3))
    found = uses.earlier_uses(DataIdentity(("a",)))
    assert found.figures == tuple(("example", one) for one in (0.5, 0.75, 0.25, 0.25)), (
        "a line that says less takes nothing back"
    )
    assert (len(found.plans), found.other_assignments) == (3, 0), "a choice is no run"
    (line,) = uses.figures_sentences(found.figures)
    assert line.startswith("4 releases of yours are about test images")
    assert "(1.750, 0)-differentially private" in line
    changed = uses.earlier_uses(DataIdentity(("c",), ("folder:/pictures",))).figures
    assert changed == (("example", 4.0),), "changed data at one place"
    assert uses.figures_sentences(changed) == []


def test_figures_of_images_and_of_persons_are_not_added_up():
    images, persons = uses.figures_sentences([("example", 1.0), ("user", 2.0), ("user", 0.5)])
    assert images.startswith("1 release of yours is about test images")
    assert "(1.000, 0)-differentially private" in images
    assert persons.startswith("2 releases of yours are about test images")
    assert "together (2.500, 0)-differentially private under add-or-remove adjacency for a person who" in persons


def test_users_who_were_told_apart_otherwise_are_in_the_total_and_named(plan):
    of_users = replace(plan(), unit=User())
    one, other = DataIdentity(("a",), ("folder:/a",), users="one"), DataIdentity(("a",), ("folder:/a",), users="other")
    uses.record(one, of_users, run="x", seeded=True)
    assert (uses.earlier_uses(one).runs, uses.earlier_uses(one).seeded) == ({"x": of_users}, 1)
    assert (
        uses.earlier_uses(other).runs,
        uses.earlier_uses(other).seeded,
        uses.earlier_uses(other).other_assignments,
    ) == ({"x": of_users}, 1, 1)
    uses.record(other, of_users, run="y")
    found = uses.uses_report(one)
    assert [total["runs"] for total in found["together"]] == [2]
    assert found["together"][0]["epsilon"] > max(row["epsilon"] for row in found["uses"])
    assert [uses.uses_report(DataIdentity(("a",)))["other_assignments"], found["other_assignments"]] == [1, 1]
    changed = DataIdentity(("b",), ("folder:/a",), users="third")
    assert list(uses.earlier_uses(changed).runs) == ["x", "y"], (
        "of changed data whose they are is taken for said in one way"
    )
    uses.record(other, of_users, run="x")
    assert [uses.earlier_uses(data).other_assignments for data in (one, other)] == [1, 0], "it counts for both"


def test_what_a_data_set_was_used_for_is_listed_once_for_each_run(record, plan):
    sfumato.set_budget("faces", epsilon=80, delta=1e-5)
    record(("a",), "run1", 50, "folder:/a", name="runs/1", seeded=True)
    record(("a",), "run1", 50, "folder:/b", name="runs/1", seeded=True)
    uses.record(DataIdentity(("a",)), plan(1), run="run2", budget="faces")
    uses.record_choice(DataIdentity(("a",)), PrivateChoice(epsilon=0.25, candidates=3))
    found = uses.uses_report(DataIdentity(("a",)))
    known = [(one["kind"], one["seeded"], one["budgets"]) for one in found["uses"]]
    assert known == [("run", True, []), ("run", False, ["faces"]), ("choice", False, [])]
    assert [(one["runs"], one["seeded"]) for one in found["together"]] == [(2, 1)]
    assert (found["by_numbers"], found["disagreements"]) == (1, [])
    json.dumps(found)


@pytest.fixture
def of_patients(images, tmp_path, scan):
    """The same images and patients by three routes: DICOM tags, a table that names them otherwise, and arrays."""
    rows = ["path,label,user"]
    for number, values in enumerate(images):
        file = tmp_path / "scans" / "ab"[number % 2] / f"{number}.dcm"
        scan(file, values, PatientID=f"ZX/{number // 3}")
        rows.append(f"{file},{'ab'[number % 2]},ZX/{number // 3}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    named = np.array([f"row {99 - number // 3}" for number in range(60)])
    np.savez(tmp_path / "arrays.npz", x=images, y=np.arange(60) % 2, users=named)
    key, routes = owner_key(), {"dicom": f"folder:{tmp_path}/scans", "table": f"csv:{tmp_path}/table.csv"}
    routes["arrays"] = f"npz:{tmp_path}/arrays.npz"
    known = {"dicom": {"user_from": "dicom"}}
    return {name: open_source(route, owner_key=key, **known.get(name, {})) for name, route in routes.items()}


def test_the_same_patients_by_several_routes_are_one_total(of_patients, plan):
    of_users = replace(plan(), unit=User())
    sfumato.set_budget("patients", epsilon=80, delta=1e-5, unit="user")
    for name, source in of_patients.items():
        uses.record(DataIdentity.from_source(source), of_users, run=name, budget="patients")
    assert len({source.assignment for source in of_patients.values()}) == 2, "DICOM files and arrays share pixels alone"
    for source in of_patients.values():
        found = uses.uses_report(DataIdentity.from_source(source))
        assert [total["runs"] for total in found["together"]] == [3]
        assert found["other_assignments"] == 0
    assert len(sfumato.read_budget("patients").reservations) == 3


def test_patients_who_are_halved_are_named_and_refused_by_their_budget(of_patients, images, tmp_path, plan):
    of_users = replace(plan(), unit=User())
    sfumato.set_budget("patients", epsilon=80, delta=1e-5, unit="user")
    uses.record(DataIdentity.from_source(of_patients["table"]), of_users, run="whole", budget="patients")
    halves = np.array([f"{number // 3} {number % 2}" for number in range(60)])
    np.savez(tmp_path / "halves.npz", x=images, y=np.arange(60) % 2, users=halves)
    data = DataIdentity.from_source(open_source(f"npz:{tmp_path}/halves.npz", owner_key=owner_key()))
    with pytest.raises(SfumatoError, match="another assignment to users") as refused:
        uses.record(data, of_users, run="halves", budget="patients")
    assert "another name" not in str(refused.value)
    uses.record(data, of_users, run="halves")
    found = uses.uses_report(data)
    assert ([total["runs"] for total in found["together"]], found["other_assignments"]) == ([2], 1)


def opened(path, images, **options):
    np.savez(path, x=images, y=np.arange(len(images)) % 2)
    return open_source(f"npz:{path}", owner_key=owner_key(), **options)


def used(source, run, **options):
    uses.record(DataIdentity.from_source(source), PLAN, run=run, name=f"runs/{run}", **options)


def notes(source, **options):
    return [*uses.overlap_notes(uses.earlier_uses(DataIdentity.from_source(source)), **options)]


def test_a_part_and_a_changed_copy_of_an_earlier_data_set_are_noticed(images, tmp_path):
    whole = opened(tmp_path / "whole.npz", images)
    assert notes(whole) == []
    used(whole, "first")
    part = opened(tmp_path / "part.npz", images[:30])
    (note,) = notes(part)
    count = len(part.train)
    assert f"{count} of these {count} records (100%) were used by 1 run of yours on another data set" in note
    assert "(runs/first)" in note
    changed = images.copy()
    changed[:40] = 255 - changed[:40]
    copy = opened(tmp_path / "changed.npz", changed)
    (note,) = notes(copy)
    before = {image.tobytes() for image in whole.train.images}
    common = sum(image.tobytes() in before for image in copy.train.images)
    assert 0 < common < len(copy.train)
    assert f"note: {common} of these {len(copy.train)} records" in note
    used(part, "second")
    (note,) = notes(copy)
    assert "used by 1 run of yours" in note  # the part holds none of what the copy kept
    (note,) = notes(whole)
    assert f"note: {count} of these {len(whole.train)} records" in note


def test_what_is_counted_already_is_not_told_of(images, tmp_path):
    whole = opened(tmp_path / "whole.npz", images)
    used(whole, "first")
    used(whole, "again")
    assert notes(whole) == []  # the totals have these
    colour = opened(tmp_path / "colour.npz", np.repeat(images[..., None], 3, -1))
    assert whole.stored_digest != colour.stored_digest
    assert notes(colour) == []  # and these: the pixels are the same
    assert notes(opened(tmp_path / "other.npz", 255 - images)) == []


def test_of_one_data_set_those_runs_are_told_of_that_no_total_has(images, tmp_path):
    """The place of one is the place of these data; the other one ran on a copy elsewhere."""
    (tmp_path / "b").mkdir()
    first, copy = opened(tmp_path / "a.npz", images), opened(tmp_path / "b" / "copy.npz", images)
    assert first.data_digests == copy.data_digests
    used(first, "here")
    used(copy, "elsewhere")
    changed = opened(tmp_path / "a.npz", images[:30])
    assert len(uses.earlier_uses(DataIdentity.from_source(changed)).plans) == 1
    (note,) = notes(changed)
    assert "1 run of yours on another data set (runs/elsewhere)" in note


def test_records_held_out_to_score_on_are_remembered_and_looked_for(images, tmp_path):
    rest, held = hold_out(opened(tmp_path / "whole.npz", images), owner_key(), 0.4)
    used(rest, "search")
    others = np.random.default_rng(1).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    part = opened(tmp_path / "part.npz", np.concatenate([held.images[..., 0], others]))
    among = {image.tobytes() for image in held.images}
    common = sum(image.tobytes() in among for image in part.train.images)
    assert common > 0
    (note,) = notes(part)
    assert f"note: {common} of these {len(part.train)} records" in note
    small = opened(tmp_path / "small.npz", np.concatenate([images[:9], others]))
    used(small, "small")
    (note,) = notes(rest)
    assert f"of these {len(rest.train) + len(held)} records" in note


def test_runs_within_the_same_budget_count_together(images, tmp_path):
    sfumato.set_budget("faces", epsilon=80, delta=1e-5)
    used(opened(tmp_path / "whole.npz", images), "first", budget="faces")
    part = opened(tmp_path / "part.npz", images[:30])
    assert notes(part, budget="faces") == []
    assert len(notes(part, budget="others")) == len(notes(part)) == 1


def test_only_the_owner_reads_the_codes_and_public_data_have_none(images, tmp_path):
    opened(tmp_path / "whole.npz", images)
    public = opened(tmp_path / "whole.npz", images, public=True)
    sfumato.train("linear", public, epsilon=3.0, steps=1, directory=tmp_path / "public")
    folder = tmp_path / "home" / store.USED
    assert not folder.exists()
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5}
    run = sfumato.train("linear", f"npz:{tmp_path}/whole.npz", directory=tmp_path / "run", **how)
    assert folder.stat().st_mode & 0o777 == 0o700
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    for file in (file for file in run.directory.rglob("*") if file.is_file()):
        content = file.read_bytes()
        halves = (half.tobytes() for code in np.load(path) for half in (code[:16], code[16:]))
        assert not any(half in content or half.hex().encode() in content for half in halves)


def test_a_source_by_which_nothing_could_be_known_again_is_refused(plan):
    with pytest.raises(SfumatoError, match="the source has no material"):
        uses.record(DataIdentity(()), plan(), run="run1")
