"""Embeddings with a promise for whole users: virtual clients, their local training, and the clipped sum of a round."""

import lazy_loader

from sfumato._renamed import with_old_names

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(
    __name__,
    __getattr__,
    {
        name: f"sfumato.evaluation.{name}"
        for name in (
            *("OperatingPoint", "Recall", "check_disjoint", "nearest", "recall_at_far", "recall_at_k", "roc"),
            *("similarity", "verify"),
        )
    },
)
