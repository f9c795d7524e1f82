"""Drivers of audits: they run the software as in training, and pass the observations to `sfumato.audit`."""
