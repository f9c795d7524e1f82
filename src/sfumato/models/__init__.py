"""Models by name: float images (N, C, H, W) in, logits (N, classes) out."""

from sfumato.models.backbone import Architecture, Backbone, Expects
from sfumato.models.backbone import build as build_backbone
from sfumato.models.backbone import load as load_backbone
from sfumato.models.custom import away_from_working_directory, function_of, is_own, trusted
from sfumato.models.head import Head, OnBackbone
from sfumato.models.head import create as create_head
from sfumato.models.pretrained import (
    HEADS,
    METADATA,
    begin_classifier,
    classifier_names,
    file_of,
    public_constants,
    stored_about,
)
from sfumato.models.registry import NAMES, create
from sfumato.models.trainable import select
from sfumato.models.trial import check_shapes
from sfumato.models.trunk import Trunk, trunk_of

__all__ = [
    "HEADS",
    "METADATA",
    "NAMES",
    "Architecture",
    "Backbone",
    "Expects",
    "Head",
    "OnBackbone",
    "Trunk",
    "away_from_working_directory",
    "begin_classifier",
    "build_backbone",
    "check_shapes",
    "classifier_names",
    "create",
    "create_head",
    "file_of",
    "function_of",
    "is_own",
    "load_backbone",
    "public_constants",
    "select",
    "stored_about",
    "trunk_of",
    "trusted",
]
