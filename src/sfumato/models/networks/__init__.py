"""Networks, one file per family.

Networks for images map float images (N, C, H, W) to logits (N, classes). They take `classes` (number of classes, or of
embedding dimensions), `channels` (colour channels C) and `size` (height and width (H, W) of the images in pixels).
"""
