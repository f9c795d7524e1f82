"""The verbs and how their options are shown. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import tyro

from sfumato.cli.dedup import Dedup
from sfumato.cli.evaluate import Evaluate
from sfumato.cli.features import Features
from sfumato.cli.finish import Finish
from sfumato.cli.plan import Plan
from sfumato.cli.predict import Predict
from sfumato.cli.pretrain import Pretrain
from sfumato.cli.report import Report
from sfumato.cli.sweep import Sweep
from sfumato.cli.tradeoff import Tradeoff
from sfumato.cli.train import Train
from sfumato.cli.verify import Verify

VERBS = {
    "train": Train,
    "pretrain": Pretrain,
    "features": Features,
    "dedup": Dedup,
    "sweep": Sweep,
    "plan": Plan,
    "tradeoff": Tradeoff,
    "evaluate": Evaluate,
    "predict": Predict,
    "report": Report,
    "verify": Verify,
    "finish": Finish,
}

STYLE = (tyro.conf.FlagCreatePairsOff,)
