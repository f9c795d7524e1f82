"""Shards from the command line to a model with its statement."""

import json
from pathlib import Path

from tests.data.readers.sharded.stored import records, write


def test_a_model_is_trained_on_shards(call, workplace):
    some = records(120, users=120)
    spec = write(Path("train"), some, [50], rows=30)
    other = write(Path("other"), some, [])
    call(f"train {spec} --noise-multiplier 8 --model linear --steps 3 --batch-size 32 --unit example --output run")
    assert json.loads(Path("run/statement.json").read_text())["epsilon"] < 3
    here, there = (json.loads(call(f"evaluate run {source} --part all --json")) for source in (spec, other))
    assert here["accuracy"] == there["accuracy"]


def test_what_is_not_there_is_refused_before_anything_is_begun(call, workplace):
    told = call("train parquet:none-*.parquet --epsilon 3", status=1)
    assert "no file matches 'none-*.parquet'; correct the path after parquet:" in told
    assert not Path("runs").exists()
