"""The weight-noise study (Davody et al. 2020, section 2)."""
