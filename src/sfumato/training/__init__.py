"""Training: one private step (`step.py`), and everything that happens around it (`loop.py`, `finish.py`)."""

import lazy_loader

from sfumato._renamed import with_old_names

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(
    __name__,
    __getattr__,
    {name: f"sfumato.experiment.{name}" for name in ("Experiment", "Performance", "Settings")}
    | {"printed": "sfumato.training.public.printed"},
)
