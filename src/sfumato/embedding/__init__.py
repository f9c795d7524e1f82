"""Embeddings with a promise for whole users: virtual clients, their local training, and the clipped sum of a round."""

import lazy_loader

from sfumato._renamed import with_old_names

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(
    __name__,
    __getattr__,
    dict.fromkeys(
        (
            *("OperatingPoint", "Recall", "check_disjoint", "nearest", "recall_at_far", "recall_at_k", "roc"),
            *("similarity", "verify"),
        ),
        "sfumato.evaluation",
    ),
)
