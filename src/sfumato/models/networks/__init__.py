"""Networks, one file per family.

Networks for images take `classes` (number of classes, or of embedding dimensions), `channels` (colour channels C) and
`size` (height and width (H, W) of the images in pixels).
"""
