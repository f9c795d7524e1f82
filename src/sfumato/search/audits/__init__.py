"""What drives audits: it makes the software do what it does in a run, and hands what comes of it to `sfumato.audit`."""
