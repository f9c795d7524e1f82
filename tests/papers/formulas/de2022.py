"""The formulas of De et al. 2022, arXiv 2204.13650, in NumPy and float64, as printed: the update and what it is of."""

import math

import numpy as np


def clip(vector, max_norm):
    """Section 2.2: clip_C(g) = min(1, C / |g|) g."""
    return vector * min(1.0, max_norm / max(np.linalg.norm(vector), 1e-300))


def private_gradient(gradients, max_norm, batch_size):
    """Equation 3 without its noise: (1 / (B C)) sum_i clip_C((1 / K) sum_k g_ik), of gradients (B, K, D)."""
    return sum(clip(views.mean(axis=0), max_norm) for views in gradients) / (batch_size * max_norm)


def descent(weights, gradient_of, *, max_norm, batch_size, noise_multiplier, draws, rates):
    """Equation 4, step by step: w - eta { (1 / B) sum_i (1 / C) clip_C(mean over views) + (sigma / B) xi }.

    `gradient_of(w, t)` gives the gradients (participants, K, D) of step t, `draws` xi of each step.
    """
    path = []
    for step, (xi, rate) in enumerate(zip(draws, rates, strict=True)):
        clipped = [clip(views.mean(axis=0), max_norm) / max_norm for views in gradient_of(weights, step)]
        total = np.sum(clipped, axis=0) if clipped else np.zeros_like(weights)
        weights = weights - rate * (total / batch_size + noise_multiplier / batch_size * xi)
        path.append(weights)
    return path


def virtual_batching(gradients, noise, *, max_norm, noise_multiplier):
    """Appendix A.1, algorithm 1, of gradients (devices, accumulation steps, local batch, K, D) and xi (steps, D)."""
    devices, accumulation, local = gradients.shape[:3]
    batch = local * devices * accumulation
    result = np.zeros(gradients.shape[-1])
    for step in range(accumulation):
        noisy = []
        for device in range(devices):
            own = [clip(views.mean(axis=0), max_norm) / max_norm for views in gradients[device, step]]
            noisy.append(np.mean(own, axis=0) + noise_multiplier * math.sqrt(accumulation) / batch * noise[step])
        result = result + (np.mean(noisy, axis=0) - result) / (step + 1)
    return result


def moving_average(start, weights, decay):
    """Appendix C.3: the average of the weights after each step, with the decay min(d, (1 + t) / (10 + t)) in step t."""
    average, path = start, []
    for step, value in enumerate(weights):
        now = min(decay, (1 + step) / (10 + step))
        average = now * average + (1 - now) * value
        path.append(average)
    return path


def shifted(image, down, right, mirrored, pad):
    """Appendix C.2: a window on the image (C, H, W) padded by mirroring on each edge, then mirrored left to right."""
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    height, width = image.shape[1:]
    window = padded[:, pad + down : pad + down + height, pad + right : pad + right + width]
    return window[:, :, ::-1] if mirrored else window


def cut_out(image, down, right, mirrored, side):
    """Appendix C.2, ImageNet: a window of `side` pixels on an image (C, 1.2 side, 1.2 side)."""
    room = image.shape[1] - side
    top, left = down + room // 2, right + room // 2
    window = image[:, top : top + side, left : left + side]
    return window[:, :, ::-1] if mirrored else window


def standardised_pixels(image, mean, deviation):
    """Appendix C.2: centred and standardised per channel; image uint8 (H, W, C), constants on the scale 0 to 1."""
    return ((image / 255 - np.asarray(mean)) / np.asarray(deviation)).transpose(2, 0, 1)


def decayed_at_half_and_three_quarters(steps):
    """Appendix C.3, CIFAR-100: a tenth at 50K of 100K steps, a hundredth at 75K."""
    return [0.1 ** ((2 * step >= steps) + (4 * step >= 3 * steps)) for step in range(steps)]


def warmed_cosine(steps, warmup):
    """Appendix C.3, JFT: a warm-up from 0 over the first steps, then half a cosine to 0 over the rest of training.

    Steps are counted so that the first one is already above the 0 that warm-up begins from.
    """
    rising = [(step + 1) / warmup for step in range(warmup)]
    return rising + [(1 + math.cos(math.pi * step / (steps - warmup))) / 2 for step in range(steps - warmup)]


def top(logits, labels, k):
    """Tables 4, 6 and 7: how often the label is among the k largest logits."""
    return np.mean([label in np.argsort(-row, kind="stable")[:k] for row, label in zip(logits, labels, strict=True)])


def median_and_deviation(values):
    """Tables 3, 5 and 11: the median of independent runs, and their standard deviation (divided by n - 1)."""
    ordered, mean = sorted(values), sum(values) / len(values)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return median, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def normal_quantile(probability):
    """Of N(0, 1), by bisection on the error function."""
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(-middle / math.sqrt(2)) / 2 < probability else (low, middle)
    return (low + high) / 2
