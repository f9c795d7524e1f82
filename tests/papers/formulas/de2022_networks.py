"""The formulas of De et al. 2022, arXiv 2204.13650, and of the networks that it takes, in NumPy and float64."""

import math

import numpy as np


def weight_standardisation(weight):
    """Appendix C.1: (W - mean) / (std sqrt(fan-in)) over each output unit's fan-in; weight (out, in, *kernel)."""
    rows = weight.reshape(len(weight), -1)
    mean, std = rows.mean(axis=1, keepdims=True), rows.std(axis=1, keepdims=True)
    return ((rows - mean) / (std * math.sqrt(rows.shape[1]))).reshape(weight.shape)


def gradient_through_standardisation(weight, upstream):
    """Appendix C.1, "as a differentiable operation": the gradient by W, of that by the standardised weight.

    With u = W - mean and W^ = u / |u|: (g - mean(g) - W^ (W^ . g)) / |u|.
    """
    rows, given = weight.reshape(len(weight), -1), upstream.reshape(len(weight), -1)
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    unit = centred / length
    along = (unit * given).sum(axis=1, keepdims=True)
    return ((given - given.mean(axis=1, keepdims=True) - unit * along) / length).reshape(weight.shape)


def group_norm(inputs, groups, gain, shift, eps=1e-5):
    """Section 3.1: each image's channels in groups of neighbours, normalised within each; inputs (N, C, H, W)."""
    count, channels = inputs.shape[:2]
    parts = inputs.reshape(count, groups, -1)
    normal = (parts - parts.mean(axis=2, keepdims=True)) / np.sqrt(parts.var(axis=2, keepdims=True) + eps)
    return normal.reshape(inputs.shape) * gain.reshape(1, channels, 1, 1) + shift.reshape(1, channels, 1, 1)


def convolution(inputs, weight, bias=None, *, stride=1, padding=0, groups=1):
    """What deep learning calls a convolution: (N, C, H, W) and (D, C / groups, k, k) to (N, D, H', W')."""
    padded = np.pad(inputs, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    kernel = weight.shape[2]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
    ins, outs = inputs.shape[1] // groups, len(weight) // groups
    parts = [
        np.einsum(
            "nchwij,dcij->ndhw",
            windows[:, group * ins : (group + 1) * ins],
            weight[group * outs : (group + 1) * outs],
            optimize=True,
        )
        for group in range(groups)
    ]
    result = np.concatenate(parts, axis=1)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1)


def relu(values):
    return np.maximum(values, 0)


def wide_resnet(
    images, state, *, depth, groups=16, standardise=weight_standardisation, eps=1e-5, before=relu, stride=2
):
    """Zagoruyko and Komodakis 2016 with appendix C.1's changes: logits of images, by a state of named arrays.

    Blocks are x + conv(act(norm(conv(act(norm(x)))))); where the shape changes, the shortcut is a 1 x 1 convolution of
    the activated input.
    """

    def conv(name, x, pace=1):
        weight = state[f"{name}.weight"]
        return convolution(x, standardise(weight), state[f"{name}.bias"], stride=pace, padding=weight.shape[2] // 2)

    def activated(name, x):
        return before(group_norm(x, groups, state[f"{name}.weight"], state[f"{name}.bias"], eps))

    x = conv("stem", images)
    each = (depth - 4) // 6
    for index in range(3 * each):
        name, pace = f"blocks.{index}", stride if index in (each, 2 * each) else 1
        inner = activated(f"{name}.norm1", x)
        shortcut = conv(f"{name}.projection", inner, pace) if f"{name}.projection.weight" in state else x
        x = shortcut + conv(f"{name}.conv2", activated(f"{name}.norm2", conv(f"{name}.conv1", inner, pace)))
    features = activated("norm", x).mean(axis=(2, 3))
    return features @ state["head.weight"].T + state["head.bias"]


def same_padding(x, kernel, pace):
    """The "same" padding of the authors' library: as few zeros as give ceil(n / pace) places, an odd one at the end."""
    sides = []
    for length in x.shape[2:]:
        zeros = max((-(-length // pace) - 1) * pace + kernel - length, 0)
        sides.append((zeros // 2, zeros - zeros // 2))
    return np.pad(x, ((0, 0), (0, 0), *sides))


def gained_standardisation(weight, gain, eps=1e-4):
    """gain (W - mean) / sqrt(max(fan-in variance, eps)) over each output unit's fan-in."""
    rows = weight.reshape(len(weight), -1)
    squares = np.maximum(rows.shape[1] * rows.var(axis=1, keepdims=True), eps)
    return (gain.reshape(-1, 1) * (rows - rows.mean(axis=1, keepdims=True)) / np.sqrt(squares)).reshape(weight.shape)


def released_wide_resnet(
    images, state, *, depth, order="norm(act(x))", around=None, last=None, own="norm_around", eps=1e-4, padded=None
):
    """The network of De et al. as they released it: x + conv(norm(act(conv(norm(act(x)))))), norm(act(x)) before the
    classifier; around the first block of each group a 1 x 1 convolution of norm(act(x)), with a norm of its own.

    Everything after `depth` is for planted mistakes.
    """

    def conv(name, x, pace=1):
        weight = gained_standardisation(state[f"{name}.weight"], state[f"{name}.gain"], eps)
        if padded is not None:
            return convolution(x, weight, state[f"{name}.bias"], stride=pace, padding=weight.shape[2] // 2)
        return convolution(same_padding(x, weight.shape[2], pace), weight, state[f"{name}.bias"], stride=pace)

    def both(name, x, order):
        gain, shift = state[f"{name}.weight"], state[f"{name}.bias"]
        if order == "act(x)":
            return relu(x)
        return relu(group_norm(x, 16, gain, shift)) if order == "act(norm(x))" else group_norm(relu(x), 16, gain, shift)

    x, each = conv("stem", images), (depth - 4) // 6
    for index in range(3 * each):
        name, pace = f"blocks.{index}", 2 if index in (each, 2 * each) else 1
        branch = conv(f"{name}.conv1", both(f"{name}.norm1", x, order), pace)
        branch = conv(f"{name}.conv2", both(f"{name}.norm2", branch, order))
        if index % each == 0:
            x = conv(f"{name}.projection", both(f"{name}.{own}", x, around or order), pace)
        x = x + branch
    return both("norm", x, last or order).mean(axis=(2, 3)) @ state["head.weight"].T + state["head.bias"]


def wide_resnet_parameters(depth, width, classes, channels=3, released=False):
    """How many parameters WRN-depth-width has: 6n + 4 layers of which each group has n blocks of two 3 x 3's.

    The released one has a 1 x 1 convolution in each group's first block, with a norm before it, and a gain of each
    output of a convolution.
    """
    blocks = (depth - 4) // 6
    gain = int(released)
    total, current = (9 * channels + 1 + gain) * 16, 16
    for out in (16 * width, 32 * width, 64 * width):
        for index in range(blocks):
            total += 2 * current + (9 * current + 1 + gain) * out + 2 * out + (9 * out + 1 + gain) * out
            if index == 0 and (released or current != out):
                total += (current + 1 + gain) * out + released * 2 * current
            current = out
    return total + 2 * current + (current + 1) * classes


# Normalizer-free networks: Brock et al. 2021a (arXiv 2101.08692) and 2021b (arXiv 2102.06171)


def relu_gain():
    """Brock et al. 2021a, section 4: gamma = sqrt(2 / (1 - 1 / pi)), which gives gamma ReLU(N(0, 1)) variance 1."""
    return math.sqrt(2 / (1 - 1 / math.pi))


def gain_of(activation, reach=12.0, points=20_001):
    """gamma = 1 / std(g(x)), x ~ N(0, 1): by the trapezoidal rule."""
    x = np.linspace(-reach, reach, points)
    weights = np.exp(-(x**2) / 2)
    weights /= weights.sum()
    values = activation(x)
    return 1 / math.sqrt((weights * values**2).sum() - (weights * values).sum() ** 2)


def gelu(values):
    """x Phi(x)."""
    return values * (1 + np.vectorize(math.erf)(values / math.sqrt(2))) / 2


def scaled_standardisation(weight, gain, gamma, eps):
    """Brock et al. 2021a: gamma g (W - mean) / sqrt((var + eps) fan-in), with a learned gain of each output unit."""
    rows = weight.reshape(len(weight), -1)
    mean, variance = rows.mean(axis=1, keepdims=True), rows.var(axis=1, keepdims=True)
    scaled = gamma * gain.reshape(-1, 1) * (rows - mean) / np.sqrt((variance + eps) * rows.shape[1])
    return scaled.reshape(weight.shape)


def betas(depths, alpha):
    """Brock et al. 2021a: block l sees x / beta_l; Var grows by alpha^2 a block, from 1 again after each stage's first.

    Returns 1 / beta_l for each block.
    """
    variance, found = 1.0, []
    for depth in depths:
        for block in range(depth):
            found.append(1 / math.sqrt(variance))
            if block == 0:
                variance = 1.0
            variance += alpha**2
    return found


def normalizer_free_block(x, state, *, alpha, beta, gamma, eps, stride, gain="skipinit_gain"):
    """x + alpha s f(beta x), f three convolutions with scaled weight standardisation and ReLU before each.

    Where the shape changes, the shortcut is a 1 x 1 convolution of the mean of each 2 x 2 square of the activated
    input: timm's and NFNet's form (Brock et al. 2021b), where Brock et al. 2021a stride the convolution.
    """

    def conv(name, value, stride=1):
        weight = scaled_standardisation(state[f"{name}.weight"], state[f"{name}.gain"], gamma, eps)
        return convolution(value, weight, state[f"{name}.bias"], stride=stride, padding=weight.shape[2] // 2)

    inner = relu(x) * beta
    shortcut = x
    if "downsample.conv.weight" in state:
        pooled = inner
        if stride == 2:
            n, c, h, w = inner.shape
            pooled = inner.reshape(n, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5))
        shortcut = conv("downsample.conv", pooled)
    inner = conv("conv1", inner)
    inner = conv("conv2", relu(inner), stride)
    inner = conv("conv3", relu(inner))
    return shortcut + alpha * (state[gain] if gain else 1.0) * inner


def nfnet_block(x, state, *, alpha, beta, gamma, eps, group_size):
    """Brock et al. 2021b: GELU times gamma, a further grouped 3 x 3, squeeze and excite twice over, SkipInit."""

    def act(value):
        return gamma * gelu(value)

    def conv(name, value, groups=1):
        weight = scaled_standardisation(state[f"{name}.weight"], state[f"{name}.gain"], 1.0, eps)
        padding = weight.shape[2] // 2
        return convolution(value, weight, state[f"{name}.bias"], padding=padding, groups=groups)

    inner = act(x) * beta
    shortcut = conv("downsample.conv", inner) if "downsample.conv.weight" in state else x
    inner = conv("conv1", inner)
    groups = inner.shape[1] // group_size
    inner = conv("conv2", act(inner), groups)
    inner = conv("conv2b", act(inner), groups)
    inner = conv("conv3", act(inner))
    pooled = inner.mean(axis=(2, 3))
    hidden = relu(pooled @ state["attn_last.fc1.weight"][:, :, 0, 0].T + state["attn_last.fc1.bias"])
    gate = 1 / (1 + np.exp(-(hidden @ state["attn_last.fc2.weight"][:, :, 0, 0].T + state["attn_last.fc2.bias"])))
    return shortcut + alpha * state["skipinit_gain"] * 2 * inner * gate[:, :, None, None]
