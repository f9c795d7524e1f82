"""Privacy guarantees: plan, sampling rules, noise mechanisms, theorems, ledger, statement. No torch here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
