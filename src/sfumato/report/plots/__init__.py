"""Plots, as SVG."""
