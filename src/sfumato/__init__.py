"""sfumato: private image classifiers, and one checkable sentence about what was promised."""
