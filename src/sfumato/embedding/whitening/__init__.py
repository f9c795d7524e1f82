"""Whitening: what makes photographs of one person differ, measured once under privacy, and taken out."""
