"""Averages over the course of training: post-processing of released parameters, free of privacy cost."""

from sfumato.averaging.ema import EMA

__all__ = ["EMA"]
