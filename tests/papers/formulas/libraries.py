"""What the package expects of libraries, in NumPy and float64."""

import math

import numpy as np

TIMM = {
    "timm:vit_base_patch16_224": (224, 0.9, 0.5, 0.5),
    "timm:resnetv2_50x3_bit.goog_in21k_ft_in1k": (448, 1.0, 0.5, 0.5),
    "timm:dm_nfnet_f0": (192, 0.9, 0.485, 0.229),
    "timm:mobilenetv2_100": (224, 0.875, 0.485, 0.229),
}
"""What is known of networks of timm: side, share of the middle, mean and deviation of the first channel."""

TORCHVISION = {
    "torchvision:resnet50": (224, 232, "bilinear"),
    "torchvision:mobilenet_v2": (224, 232, "bilinear"),
    "torchvision:vit_b_16": (224, 256, "bilinear"),
    "torchvision:squeezenet1_1": (224, 256, "bilinear"),
    "torchvision:efficientnet_b0": (224, 256, "bicubic"),
    "torchvision:densenet121": (224, 256, "bilinear"),
}
"""What torchvision's pages say of the default weights: side, size before the middle is taken, interpolation."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's."""


def resized(image, height, width, *, box=None, antialias=True, corners=False, nearest=False):
    """An image (C, H, W), or a square of it, in another size by bilinear interpolation; pixel i stands at i + 1/2.

    The filter sees pixels beyond the square (top, left, side), as if the whole image were resized and cut afterwards.
    """

    def matrix(old, new, start):
        part = old if box is None else box[2]
        scale = (part - 1) / max(new - 1, 1) if corners else part / new
        wider = max(scale, 1.0) if antialias else 1.0
        middles = start + (np.arange(new) * scale + 0.5 if corners else (np.arange(new) + 0.5) * scale)
        if nearest:
            return np.eye(old)[np.minimum(middles.astype(int), old - 1)]
        distance = np.abs(np.subtract.outer(middles, np.arange(old) + 0.5)) / wider
        weights = np.maximum(1 - distance, 0)
        return weights / weights.sum(axis=1, keepdims=True)

    top, left = (0, 0) if box is None else box[:2]
    rows, columns = matrix(image.shape[1], height, top), matrix(image.shape[2], width, left)
    return np.einsum("ih,chw,jw->cij", rows, image, columns)


def luma(image, weights=(0.299, 0.587, 0.114)):
    """ITU-R 601 of a coloured image (3, H, W)."""
    return np.einsum("c,chw->hw", weights, image)[None]


def sixteen_levels_as_bytes(pixels):
    """scikit-learn's digits have pixels from 0 to 16: 16 becomes 255, halves go to the even neighbour."""
    return np.rint(pixels * 255 / 16)


def cross_entropy(logits, labels, *, smoothing=0.0, mean=True):
    """-log p of the label, p = softmax, in nats."""
    highest = logits.max(axis=1, keepdims=True)
    logs = logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    wanted = np.eye(logits.shape[1])[labels] * (1 - smoothing) + smoothing / logits.shape[1]
    losses = -(wanted * logs).sum(axis=1)
    return losses.mean() if mean else losses.sum()


def binary_cross_entropy(logits, labels):
    """-sum over labels of y log p + (1 - y) log(1 - p), p = sigmoid, the mean over examples."""
    return (np.maximum(logits, 0) - labels * logits + np.log1p(np.exp(-np.abs(logits)))).sum(axis=1).mean()


def head_of_one_norm(features, weight, bias, norm):
    """Features x norm / |x|, then one linear layer."""
    return features / np.linalg.norm(features, axis=1, keepdims=True) * norm @ weight.T + bias


def calibration_error(logits, labels, bins=15):
    """Expected calibration error over bins of equal width (Guo et al. 2017, equation 3)."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    likely = odds / odds.sum(axis=1, keepdims=True)
    sure, right = likely.max(axis=1), likely.argmax(axis=1) == labels
    places = np.minimum((sure * bins).astype(int), bins - 1)
    return sum(abs(sure[places == place].sum() - right[places == place].sum()) for place in range(bins)) / len(labels)


def confusion(logits, labels):
    """Rows are labels, columns first choices."""
    found = np.zeros((logits.shape[1], logits.shape[1]))
    for row, label in zip(logits, labels, strict=True):
        found[label, row.argmax()] += 1
    return found


def epsilon_of_gaussian(sigma, delta):
    """Of one Gaussian release of sensitivity 1, exactly: delta = Phi(1/2s - e s) - e^e Phi(-1/2s - e s)."""

    def too_much(epsilon):
        ends = [math.erfc(-(sign / (2 * sigma) - epsilon * sigma) / math.sqrt(2)) / 2 for sign in (1, -1)]
        return ends[0] - math.exp(epsilon) * ends[1] > delta

    low, high = 0.0, 100.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if too_much(middle) else (low, middle)
    return high


def epsilon_of_steps(probability, sigma, steps, delta, *, width, rounding, reach=12.0, points=100_001):
    """Of T sampled Gaussian steps, the record removed, on a grid of losses that are rounded "up" or "down".

    Of the two directions this one has the larger epsilon.
    """
    x = np.linspace(-14 * sigma, 14 * sigma + 1, points)
    plain, moved = np.exp(-(x**2) / (2 * sigma**2)), np.exp(-((x - 1) ** 2) / (2 * sigma**2))
    masses = (1 - probability) * plain + probability * moved
    loss = np.logaddexp(math.log1p(-probability), math.log(probability) + (2 * x - 1) / (2 * sigma**2))
    count = 2 * round(reach / width)
    places = (np.ceil if rounding == "up" else np.floor)(loss / width).astype(int)
    found = np.bincount(places % count, masses / masses.sum(), count)
    together = np.fft.irfft(np.fft.rfft(found) ** steps, count)
    losses = width * np.fft.fftfreq(count, 1 / count)
    low, high = 0.0, reach
    while high - low > 1e-7:
        middle = (low + high) / 2
        above = losses > middle
        left = (together[above] * -np.expm1(middle - losses[above])).sum()
        low, high = (middle, high) if left > delta else (low, middle)
    return high
