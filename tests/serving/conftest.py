"""A small model, and servers of it in a thread on a port of their own."""

import io
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from torch import nn

from sfumato.data import Transform
from sfumato.runs import Loaded
from sfumato.runs.loaded import Reading

SAID = {
    "sentence": "This model is (3, 1e-05)-differentially private.",
    "plain": ["Whoever sees the model learns almost nothing of one <example>."],
    "not_covered": ["Running time."],
    "epsilon": 3.0,
    "delta": 1e-5,
}


class Said:
    """A statement."""

    def to_dict(self):
        return SAID


class Dark(nn.Module):
    """Whether an image is dark; slow where it is told to be."""

    def __init__(self):
        super().__init__()
        self.seconds, self.sizes, self.fails = 0.0, [], False

    def forward(self, inputs):
        time.sleep(self.seconds)
        self.sizes.append(len(inputs))
        if self.fails:
            raise RuntimeError("of secret content")
        level = inputs.float().flatten(1).mean(1)
        return torch.stack([-level, level], 1)


def dark() -> Loaded:
    """The model that tells dark images from light ones."""
    transform = Transform(size=8, channels=1)
    return Loaded(
        module=Dark(), transform=transform, reading=Reading(classes=("dark", "light"), loss="softmax"), statement=Said()
    )


@pytest.fixture
def loaded() -> Loaded:
    return dark()


@pytest.fixture(scope="session")
def png():
    """A file of an image of one grey."""

    def made(level: int, side: int = 8) -> bytes:
        out = io.BytesIO()
        Image.new("L", (side, side), level).save(out, "PNG")
        return out.getvalue()

    return made


@pytest.fixture(scope="session")
def serving():
    """Serve a model, with limits or a key; gives host and port, and the service. At its end it waits for nobody."""
    pytest.importorskip("uvicorn", reason="sfumato[serve] is not installed")
    from sfumato.serving import Limits, Service
    from sfumato.serving.server import open_listener, serve, server

    @contextmanager
    def served(loaded, *, key=None, **limits):
        service = Service(loaded, limits=Limits(**limits), key=key, local=True)
        ready, listener = server(service), open_listener("127.0.0.1", 0)
        place = listener.getsockname()
        thread = threading.Thread(target=serve, args=(ready, listener))
        thread.start()
        try:
            while not ready.started:
                time.sleep(0.01)
            yield place, service
        finally:
            ready.should_exit = True
            thread.join()

    return served
