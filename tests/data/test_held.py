"""Records that lie on a device: as they are stored, and only where they fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import _devices
from sfumato.data import source as parts
from sfumato.data.records import TextRecords
from sfumato.data.source import DeviceRecords, fits_on_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("labels", [np.arange(7) % 3, np.eye(7, 4, dtype=np.int64)])
def test_rows_are_the_records_however_they_are_copied(spots, labels, monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (7, 8, 8, 1), dtype=np.uint8)
    images.flags.writeable = False
    plain = replace(spots.train, images=images, labels=labels, codes=None, rows=None, files=None)
    texts = TextRecords(
        tokens=np.arange(35, dtype=np.int32).reshape(7, 5), labels=labels, codes=np.zeros((7, 32), np.uint8)
    )
    for block in (1, 100, 1 << 20):
        monkeypatch.setattr(parts, "BLOCK", block)
        for records in (plain, texts):
            for rows in (np.array([5, 0, 5]), np.arange(7), np.arange(0)):
                stored, known = DeviceRecords(records, CPU).take(rows)
                assert stored.numpy().dtype == records.take(rows).dtype
                assert np.array_equal(stored, records.take(rows))
                assert np.array_equal(known, labels[rows])


def test_they_lie_there_where_they_fit_and_never_on_the_cpu(spots, monkeypatch):
    size, there = spots.train.images.nbytes, torch.device("meta")
    for free, small in ((int(size / parts.DEVICE_SHARE) + 1, True), (int(size / parts.DEVICE_SHARE) - 9, False)):
        monkeypatch.setattr(_devices, "free_memory", lambda device, free=free: free)
        assert fits_on_device(spots.train, there) == small
        assert not fits_on_device(spots.train, CPU)
