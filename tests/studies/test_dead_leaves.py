import pytest
import torch

from sfumato.models.networks.prior import COLOUR, GREY, creation_arguments, prior_for, read
from studies import command
from studies import dead_leaves as making
from studies.dead_leaves import write


@pytest.mark.parametrize(("kind", "channels"), [(COLOUR, 3), (GREY, 1)])
def test_a_stored_dictionary_is_what_its_own_record_says(kind, channels):
    prior, record = prior_for(channels), creation_arguments(kind)
    assert record["kind"] == kind
    assert [scale.filters.shape for scale in prior.scales] == [(36 * channels, count) for count in record["atoms"]]
    count = sum(record["atoms"])
    assert prior.whitening.vectors.shape == (4, count, count)
    assert prior.whitening.vectors.dtype == torch.int8
    assert record["images"] >= 2 * count
    assert set(record) == {"kind", "images", "seed", "atoms", "thresholds", "power", "sums", "second"}
    assert making.KINDS[kind]._asdict().items() <= record.items()
    assert record["second"] == (0 if prior.second is None else prior.second.filters.shape[1])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_dictionary_is_read_as_it_was_written(channels, tmp_path):
    prior = prior_for(channels)
    write(prior, tmp_path / "copy.safetensors", made_of={"kind": GREY})
    copy = read(tmp_path / "copy.safetensors")
    assert list(copy.constants()) == list(prior.constants())
    assert all(torch.equal(value, copy.constants()[name]) for name, value in prior.constants().items())


@pytest.mark.slow
def test_making_one_is_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(making, "ATOMS", (4, 2))
    monkeypatch.setattr("studies.dead_leaves._PATCHES", 200)
    out = tmp_path / "small.safetensors"
    assert command.main("dead_leaves", [str(out), "--kind", "grey", "--images", "6", "--seed", "3"]) == 0
    assert "MB" in capsys.readouterr().err
    prior = read(out)
    assert [scale.filters.shape for scale in prior.scales] == [(36, 4), (36, 2)]
    again = making.make("grey", images=6, atoms=(4, 2), seed=3)
    torch.testing.assert_close(prior.scales[0].filters, again.scales[0].filters)
    assert prior.whitening.scales.shape == (4, 6)
    assert prior.second is None
