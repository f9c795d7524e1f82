import pytest
import torch

from sfumato.models.networks.prior import EVENNESS, WIDTH, Atoms, SecondLayer, responses


def images(channels, size, count=1):
    noise = torch.rand(count, channels, size + 4, size + 4, generator=torch.Generator().manual_seed(0))
    return 6 * torch.nn.functional.avg_pool2d(noise, 5, 1) - 3


def atoms(width, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return Atoms(torch.randn(width, count, generator=generator), torch.randn(count, generator=generator))


def answers(image, filters, offsets):
    """The positive responses at each place of one image (C, H, W): (H', W', n)."""
    rows = []
    for top in range(image.shape[1] - WIDTH + 1):
        row = []
        for left in range(image.shape[2] - WIDTH + 1):
            patch = image[:, top : top + WIDTH, left : left + WIDTH].flatten()
            normalised = (patch - patch.mean()) / (patch.var() + EVENNESS).sqrt()
            row.append((normalised @ filters + offsets).clamp(min=0))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def quarter_means(maps):
    """Means of maps (H, W, n) over quarters that share the middle row or column: (n, 4)."""
    rows, columns = (-(-side // 2) for side in maps.shape[:2])
    top, bottom = maps[:rows], maps[-rows:]
    quarters = [top[:, :columns], top[:, -columns:], bottom[:, :columns], bottom[:, -columns:]]
    return torch.stack([quarter.mean((0, 1)) for quarter in quarters], 1)


@pytest.mark.parametrize("size", [11, 12])
def test_responses_are_what_the_formula_gives_patch_by_patch(size):
    own, image = atoms(3 * WIDTH**2, 5), images(3, size)
    (plain,) = responses(image, [own], mirrored=False)
    by_hand = quarter_means(answers(image[0], *own))
    torch.testing.assert_close(plain[0], by_hand.sqrt(), atol=1e-5, rtol=1e-5)
    (mirrored,) = responses(image, [own], mirrored=True)
    of_mirror = quarter_means(answers(image[0].flip(2), *own))
    torch.testing.assert_close(mirrored[0], ((by_hand + of_mirror) / 2).sqrt(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [16, 19])
def test_the_second_layer_compares_patches_of_the_first_ones_maps(size):
    own, deeper = atoms(3 * WIDTH**2, 5), atoms(9 * 4, 7, seed=2)
    generator = torch.Generator().manual_seed(3)
    matrix, shift = torch.randn(5, 4, generator=generator), torch.randn(4, generator=generator)
    image = images(3, size)
    _, found = responses(image, [own], SecondLayer(matrix, shift, *deeper), mirrored=False)
    maps = answers(image[0], *own)
    side = (maps.shape[0] - 3) // 2 + 1
    windows = [[maps[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].mean((0, 1)) for j in range(side)] for i in range(side)]
    reduced = torch.stack([torch.stack(row) for row in windows]).sqrt() @ matrix + shift
    rows = []
    for i in range(side - 2):
        patches = torch.stack([reduced[i : i + 3, j : j + 3].permute(2, 0, 1).flatten() for j in range(side - 2)])
        normalised = patches / patches.square().mean(1, keepdim=True).sqrt()
        rows.append((normalised @ deeper.filters + deeper.offsets).clamp(min=0))
    torch.testing.assert_close(found[0], quarter_means(torch.stack(rows)).sqrt(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [32, 33])
def test_mirrored_responses_of_both_layers_are_those_of_the_mirror_image(size):
    generator = torch.Generator().manual_seed(3)
    second = SecondLayer(torch.randn(5, 4, generator=generator), torch.zeros(4), *atoms(9 * 4, 7, seed=2))
    some = images(3, size, 2)
    scales = [atoms(3 * WIDTH**2, 5), atoms(3 * WIDTH**2, 3, seed=4)]
    for ours, theirs in zip(
        responses(some, scales, second, mirrored=True),
        responses(some.flip(3), scales, second, mirrored=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
