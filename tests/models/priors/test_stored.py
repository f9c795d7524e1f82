import pytest
import torch

from sfumato.models.priors import making
from sfumato.models.priors.stored import COLOUR, GREY, creation_arguments, prior_for, read, write


@pytest.mark.parametrize(("kind", "channels"), [(COLOUR, 3), (GREY, 1)])
def test_a_stored_dictionary_is_what_its_own_record_says(kind, channels):
    prior, record = prior_for(channels), creation_arguments(kind)
    assert record["kind"] == kind
    assert [scale.filters.shape for scale in prior.scales] == [(36 * channels, count) for count in record["atoms"]]
    count = sum(record["atoms"])
    assert prior.whitening.vectors.shape == (4, count, count)
    assert prior.whitening.vectors.dtype == torch.int8
    assert record["images"] >= 2 * count
    assert set(record) == {"kind", "images", "seed", "atoms", "thresholds", "power"}
    assert record["power"] == making.POWERS[kind]


def test_a_dictionary_is_read_as_it_was_written(tmp_path):
    prior = prior_for(1)
    write(prior, tmp_path / "copy.safetensors", made_of={"kind": GREY})
    copy = read(tmp_path / "copy.safetensors")
    for ours, theirs in zip(prior.scales, copy.scales, strict=True):
        assert torch.equal(ours.filters, theirs.filters)
        assert torch.equal(ours.offsets, theirs.offsets)
    for ours, theirs in zip(prior.whitening, copy.whitening, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_making_one_is_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(making, "ATOMS", (4, 2))
    monkeypatch.setattr("sfumato.models.priors.stored._PATCHES", 200)
    out = tmp_path / "small.safetensors"
    monkeypatch.setattr("sys.argv", ["making", str(out), "--kind", "grey", "--images", "6", "--seed", "3"])
    making.main()
    assert "MB" in capsys.readouterr().out
    prior = read(out)
    assert [scale.filters.shape for scale in prior.scales] == [(36, 4), (36, 2)]
    again = making.make("grey", images=6, atoms=(4, 2), seed=3)
    torch.testing.assert_close(prior.scales[0].filters, again.scales[0].filters)
    assert prior.whitening.scales.shape == (4, 6)
