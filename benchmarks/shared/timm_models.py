"""One small member of each family of timm: the table of which `zoo.py` sweeps all and the tests run the CHOSEN.

Each row is the smallest member of a family, made smaller where its options allow: fewer and narrower blocks, one of
each kind. Left out are those that come in one large size alone: `inception_v4`, `inception_resnet_v2`, `pnasnet`,
`xception`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from timm.models import _efficientnet_builder as efficientnet_builder
from timm.models import byobnet, metaformer, mlp_mixer, mvitv2, nfnet, selecsls
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: of a model that timm registers; or any name, if there is a constructor.
        side: of the image.
        constructor: the family's class, where timm's named models fix the options that make one small.
        label: if not the name.
        unused: beginnings of the names of parameters that this model does not use.
        tolerance: of the comparison; more where the model itself computes in single precision.
        options: of the model.
    """

    name: str
    side: int
    constructor: Callable[..., nn.Module] | None = None
    label: str = ""
    unused: tuple[str, ...] = ()
    tolerance: float = 1e-8
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Whether the installed timm has it."""
        return self.constructor is not None or timm.is_model(self.name)


def row(name, side, constructor=None, *, label="", unused=(), tolerance=1e-8, **options) -> Row:
    return Row(name, side, constructor, label or name, unused, tolerance, options)


TINY = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 3}
STAGES = {"depths": (1, 1, 1, 1), "dims": (16, 32, 64, 128)}
TWINS = {"img_size": 64, "embed_dims": (16, 32, 64, 128), "num_heads": (1, 2, 4, 8)}
MIXER = {"img_size": 32, "patch_size": 16, "num_blocks": 2, "embed_dim": 64}
# Kernel, middle width, width, squeeze and excitation, stride.
GHOSTS = [[[3, 16, 16, 0, 1]], [[3, 48, 24, 0, 2]], [[5, 72, 40, 0.25, 2]], [[5, 120, 40, 0.25, 1]]]
ONE_BLOCK_EACH = {"layers": (1, 1, 1, 1)}
RESNET = {"channels": (32, 64, 128, 256), **ONE_BLOCK_EACH}
# Some families call the function with their own rate, so there is no module to put to sleep.
NO_DROPOUT = {"drop_rate": 0.0}


def attentive(layer, *, fixed_input_size=False, **options):
    """A network whose second stage attends by this layer."""
    return byobnet.ByoModelCfg(
        blocks=(
            byobnet.ByoBlockCfg("bottle", d=1, c=32, s=1, gs=0, br=0.5),
            byobnet.ByoBlockCfg("self_attn", d=2, c=64, s=2, gs=0, br=0.5),
        ),
        stem_chs=16,
        fixed_input_size=fixed_input_size,
        self_attn_layer=layer,
        self_attn_kwargs=options,
    )


def high_resolution():
    """A network of one to four resolutions at once."""
    of_one = {"num_modules": 1, "fuse_method": "SUM", "block_type": "BASIC"}
    return {
        "stem_width": 16,
        "stage1": {**of_one, "num_branches": 1, "num_blocks": (1,), "num_channels": (16,), "block_type": "BOTTLENECK"},
        "stage2": {**of_one, "num_branches": 2, "num_blocks": (1, 1), "num_channels": (8, 16)},
        "stage3": {**of_one, "num_branches": 3, "num_blocks": (1, 1, 1), "num_channels": (8, 16, 32)},
        "stage4": {**of_one, "num_branches": 4, "num_blocks": (1,) * 4, "num_channels": (8, 16, 32, 64)},
    }


MODELS = {
    row.label: row
    for row in (
        # Transformers of one width.
        row("vit_tiny_patch16_224", 32, img_size=32, depth=2),
        row("vit_small_patch16_18x2_224", 32, **TINY),
        row("vit_medium_patch16_gap_240", 32, **TINY),
        row("vit_base_patch16_siglip_224", 32, **TINY),
        row("vit_srelpos_small_patch16_224", 32, **TINY),
        row("vit_relpos_small_patch16_224", 32, **TINY),
        row("vit_tiny_r_s16_p8_224", 32, img_size=32, depth=2),
        row("test_vit2", 32, img_size=32),
        row("test_vit3", 32, img_size=32),
        row("test_vit4", 32, img_size=32),
        row("samvit_base_patch16_224", 64, window_size=2, global_attn_indexes=(1,), **{**TINY, "img_size": 64}),
        row("deit_tiny_distilled_patch16_224", 32, **TINY),
        row("deit3_small_patch16_224", 32, **TINY),
        row("cait_xxs24_224", 32, img_size=32, depth=2),
        row("beit_base_patch16_224", 32, **TINY),
        row("beitv2_base_patch16_224", 32, **TINY),
        row("eva_giant_patch14_224", 28, **{**TINY, "img_size": 28}),
        row("eva02_tiny_patch14_224", 28, img_size=28, depth=2),
        row("vit_tiny_patch16_dinov3_qkvb", 32, img_size=32, depth=2),
        row("vit_base_patch16_rope_mixed_224", 32, **TINY),
        row("vit_pe_core_tiny_patch16_384", 32, img_size=32, depth=2),
        row("naflexvit_base_patch16_gap", 32, depth=2, embed_dim=48, num_heads=3),
        row("naflexvit_base_patch16_map", 32, depth=2, embed_dim=48, num_heads=3),
        row("naflexvit_base_patch16_parfac_gap", 32, depth=2, embed_dim=48, num_heads=3),
        row("qwen3_vit_88m", 64, pos_embed_grid_size=4, **{**TINY, "img_size": 64}),
        # Its norms compute in single precision, whatever they are given.
        row("deepseek_vit_412m", 42, tolerance=1e-6, **{**TINY, "img_size": 42}),
        row(
            "gemma4_vit_167m",
            48,
            head_dim=16,
            intermediate_size=96,
            position_embedding_size=16,
            **{**TINY, "img_size": 48},
        ),
        row("convit_tiny", 32, local_up_to_layer=1, **TINY),
        row(
            "volo_d1",
            64,
            timm.models.VOLO,
            img_size=64,
            embed_dims=(24, 48, 48, 48),
            num_heads=(1, 2, 2, 2),
            **ONE_BLOCK_EACH,
        ),
        row("xcit_nano_12_p8_224", 32, depth=2),
        row("tnt_s_patch16_224", 32, img_size=32, depth=2, embed_dim=96, num_heads_outer=3),
        # Transformers in stages.
        row("swin_tiny_patch4_window7_224", 64, img_size=64, depths=(2, 1, 1, 1), embed_dim=24, window_size=4),
        row("swin_s3_tiny_224", 64, img_size=64, depths=(1, 1, 2, 1), embed_dim=24, window_size=(4, 4, 4, 2)),
        row("swinv2_tiny_window8_256", 64, img_size=64, depths=(2, 1, 1, 1), embed_dim=24, window_size=4),
        row("swinv2_cr_tiny_224", 64, img_size=64, depths=(2, 1, 1, 1), embed_dim=24, window_size=4),
        row("swinv2_cr_tiny_ns_224", 64, img_size=64, depths=(2, 1, 1, 1), embed_dim=24, window_size=4),
        row("test_maxvit", 64, img_size=64),
        row("test_coatnet", 64, img_size=64),
        row("maxvit_rmlp_pico_rw_256", 64, img_size=64, depths=(1, 1, 1, 1), embed_dim=(32, 32, 64, 64)),
        row(
            "mvitv2",
            64,
            mvitv2.MultiScaleVit,
            img_size=(64, 64),
            cfg=mvitv2.MultiScaleVitCfg(depths=(1, 1, 1, 1), embed_dim=24),
        ),
        row("pvt_v2_b0", 64, depths=(1, 1, 1, 1)),
        row("pvt_v2_b2_li", 64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 40, 64)),
        row("twins_svt_small", 64, depths=(1, 1, 2, 1), **TWINS),
        row("twins_pcpvt_small", 64, depths=(1, 1, 1, 1), **TWINS),
        row("nest", 64, timm.models.Nest, img_size=64, depths=(1, 1, 1), embed_dims=(24, 48, 96), num_heads=(1, 2, 4)),
        row("levit_128s", 64, img_size=64),
        row("levit_conv_128s", 64, img_size=64),
        row("crossvit_tiny_240", 120, img_size=120, depth=((1, 1, 0), (1, 1, 0), (1, 1, 0))),
        row("crossvit_9_dagger_240", 120, img_size=120, depth=((1, 1, 0), (1, 1, 0), (1, 1, 0)), embed_dim=(32, 64)),
        row("coat_lite_tiny", 64, img_size=64, embed_dims=(32, 32, 32, 32), serial_depths=(1, 1, 1, 1)),
        row(
            "coat_tiny",
            32,
            img_size=32,
            embed_dims=(32, 32, 32, 32),
            serial_depths=(1, 1, 1, 1),
            parallel_depth=1,
        ),
        row(
            "tiny_vit_5m_224",
            64,
            embed_dims=(16, 32, 64, 96),
            depths=(1, 1, 1, 1),
            num_heads=(1, 2, 4, 6),
            window_sizes=(4, 4, 2, 2),
        ),
        row("davit_tiny", 64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 64, 128), num_heads=(1, 2, 4, 8)),
        row("focalnet", 64, timm.models.FocalNet, depths=(1, 1, 1, 1), embed_dim=16),
        # A stage of one block has no block of the kind that reads the global query.
        row(
            "gcvit",
            64,
            timm.models.GlobalContextVit,
            unused=("stages.0.global_block.", "stages.3.global_block."),
            img_size=64,
            depths=(1, 2, 2, 1),
            embed_dim=16,
            num_heads=(1, 1, 2, 4),
            window_size=(4, 4, 2, 2),
        ),
        row("visformer_tiny", 64, img_size=64, embed_dim=96, depth=(1, 1, 1), num_heads=3),
        row("pit_ti_224", 64, img_size=64, depth=(1, 1, 1)),
        row("pit_ti_distilled_224", 64, img_size=64, depth=(1, 1, 1)),
        row("hiera_tiny_224", 64, img_size=64, embed_dim=24, stages=(1, 1, 1, 1)),
        row("hieradet_small", 64, embed_dim=24, stages=(1, 1, 2, 1), global_att_blocks=(3,)),
        row("vitamin_small_224", 32, img_size=32, depth=2),
        row("csatv2", 64),
        row("iformer_t", 64),
        row(
            "sequencer2d_s",
            64,
            img_size=64,
            layers=(1, 1, 1, 1),
            embed_dims=(24, 48, 48, 48),
            hidden_sizes=(6, 12, 12, 12),
        ),
        # Between transformers and convolutions.
        row("efficientformer_l1", 224, depths=(1, 1, 1, 2), embed_dims=(8, 16, 24, 32)),
        row("efficientformerv2_s0", 64, img_size=64, depths=(1, 1, 2, 2)),
        row("efficientvit_b0", 64),
        row("efficientvit_l1", 64, widths=(16, 16, 32, 32, 64), depths=(1, 1, 1, 1, 1), head_widths=(64, 64)),
        row("efficientvit_m0", 64, img_size=64),
        row("efficientvim_m1", 64, embed_dim=(32, 48, 64), depths=(1, 1, 1)),
        row("lowformer_b0", 64, depth_list=(0, 1, 1, 1, 1), head_widths=(64, 64)),
        row("edgenext_xx_small", 64),
        row("mobilevit_xxs", 64),
        row("mobilevitv2_050", 64),
        row("fastvit_sa12", 64, layers=(1, 1, 1, 1), embed_dims=(16, 32, 64, 128)),
        row("nextvit_small", 32, depths=(1, 1, 5, 1)),
        row("swiftformer_xs", 64, layers=(1, 1, 1, 1)),
        row("shvit_s1", 64),
        row("repvit_m0_9", 64, depth=(1, 1, 2, 1)),
        row("cpubone_nano", 64),
        row("starnet_s050", 32),
        row("mambaout_femto", 32, depths=(1, 1, 1, 1), dims=(16, 32, 48, 64)),
        # Mixers and the like.
        row("mixer", 32, timm.models.MlpMixer, **MIXER),
        row(
            "gmixer",
            32,
            timm.models.MlpMixer,
            mlp_ratio=(1.0, 4.0),
            mlp_layer=mlp_mixer.GluMlp,
            act_layer=nn.SiLU,
            **MIXER,
        ),
        row(
            "resmlp",
            32,
            timm.models.MlpMixer,
            block_layer=mlp_mixer.ResBlock,
            norm_layer=mlp_mixer.Affine,
            mlp_ratio=4,
            **MIXER,
        ),
        row(
            "gmlp",
            32,
            timm.models.MlpMixer,
            block_layer=mlp_mixer.SpatialGatingBlock,
            mlp_layer=mlp_mixer.GatedMlp,
            mlp_ratio=6,
            **MIXER,
        ),
        row("convmixer", 32, timm.models.ConvMixer, dim=64, depth=2),
        row(
            "poolformer",
            64,
            timm.models.MetaFormer,
            downsample_norm=None,
            mlp_act=nn.GELU,
            mlp_bias=True,
            norm_layers=metaformer.GroupNorm1,
            layer_scale_init_values=0.1,
            res_scale_init_values=None,
            use_mlp_head=False,
            **STAGES,
        ),
        row(
            "poolformerv2",
            64,
            timm.models.MetaFormer,
            norm_layers=metaformer.GroupNorm1NoBias,
            use_mlp_head=False,
            **STAGES,
        ),
        row(
            "caformer",
            64,
            timm.models.MetaFormer,
            token_mixers=[metaformer.SepConv] * 2 + [metaformer.Attention] * 2,
            norm_layers=[metaformer.LayerNorm2dNoBias] * 2 + [metaformer.LayerNormNoBias] * 2,
            **STAGES,
        ),
        # Convolutions without batch norm.
        row("convnext_atto", 32, depths=(1, 1, 2, 1)),
        row("convnext_zepto_rms_ols", 32, depths=(1, 1, 1, 1)),
        row("test_convnext3", 32),
        row("convnextv2_atto", 32, depths=(1, 1, 1, 1)),
        row("inception_next_atto", 32, depths=(1, 1, 1, 1)),
        row("rdnet_tiny", 32, num_blocks_list=(1,) * 7, growth_rates=(16,) * 7),
        row("test_nfnet", 32),
        row(
            "nf_resnet",
            32,
            timm.models.NormFreeNet,
            cfg=nfnet._nfres_cfg(depths=(1, 1, 1, 1), channels=(64, 128, 192, 256)),
        ),
        row("nf_regnet_b0", 32),
        row(
            "dm_nfnet",
            32,
            timm.models.NormFreeNet,
            cfg=dataclasses.replace(
                nfnet._dm_nfnet_cfg(depths=(1, 1, 1, 1), channels=(32, 64, 96, 96)), stem_chs=32, group_size=8
            ),
        ),
        row(
            "resnetv2_50x1_bit",
            32,
            timm.models.ResNetV2,
            channels=(128, 256, 384, 512),
            stem_type="fixed",
            **ONE_BLOCK_EACH,
        ),
        row("resnet26", 32, label="resnet26 groupnorm", norm_layer="groupnorm", **RESNET),
        row("resnet26", 32, label="resnet26 rmsnorm2d", norm_layer="rmsnorm2d", **RESNET),
        row("test_efficientnet_gn", 32),
        row("test_efficientnet_ln", 32),
        row("test_efficientnet_evos", 32),
        row(
            "vgg",
            32,
            timm.models.VGG,
            cfg=[16, "M", 32, "M", 64, 64, "M", 96, "M", 96, "M"],
            mlp_ratio=1 / 64,
        ),
        # Convolutions with batch norm, which is frozen at stored statistics.
        row("test_resnet", 32),
        row("resnetv2_18", 32, channels=(16, 32, 64, 128), stem_chs=16),
        row("resnetaa50", 32, **RESNET),
        row("ecaresnet26t", 32, **RESNET),
        row("seresnext26d_32x4d", 32, **RESNET),
        row("legacy_seresnet18", 32, **NO_DROPOUT, **ONE_BLOCK_EACH),
        row("resnest14d", 32, **RESNET),
        row("res2net50d", 32, **RESNET),
        row("res2next50", 32, **RESNET),
        row("skresnet18", 32, **RESNET),
        row("gcresnext26ts", 32),
        row("botnet", 64, timm.models.ByobNet, img_size=64, cfg=attentive("bottleneck", fixed_input_size=True)),
        row("halonet", 64, timm.models.ByobNet, cfg=attentive("halo", block_size=4, halo_size=1)),
        row("lambda", 64, timm.models.ByobNet, cfg=attentive("lambda", r=5)),
        row("lambda rpt", 64, timm.models.ByobNet, img_size=64, cfg=attentive("lambda", r=None, fixed_input_size=True)),
        row("test_byobnet", 32),
        row("gernet_s", 32),
        row("repvgg_a0", 32),
        row(
            "mobileone",
            32,
            timm.models.ByobNet,
            cfg=byobnet.ByoModelCfg(
                blocks=byobnet._mobileone_bcfg(
                    d=(1, 1, 1, 1), wf=(0.5,) * 4, se_blocks=(0, 0, 0, 1), num_conv_branches=4
                ),
                stem_type="one",
                stem_chs=32,
            ),
        ),
        row("regnetx_002", 32),
        row("regnety_002", 32),
        row("regnetz_005", 32),
        row("densenet121", 32, block_config=(2, 2, 2, 2)),
        row("inception_v3", 75),
        row(
            "xception41p",
            32,
            block_cfg=[
                {"in_chs": 64, "out_chs": 64, "stride": 2},
                {"in_chs": 64, "out_chs": 96, "stride": 1},
                {"in_chs": 96, "out_chs": (96, 128, 128), "no_skip": True, "stride": 1},
            ],
        ),
        row("nasnet", 64, timm.models.NASNetALarge, stem_size=16, num_features=192),
        row("mobilenetv2_035", 32),
        row("mobilenetv3_small_050", 32),
        row("mobilenetv4_conv_small_035", 32),
        row("mobilenetv4_hybrid_medium_075", 64),
        row("mobilenetv5_base", 64, channel_multiplier=0.125, num_features=64),
        row("lcnet_035", 32),
        row("lcnetv2_small", 32, **NO_DROPOUT),
        row("hardcorenas_a", 32),
        row("test_efficientnet", 32),
        row("mixnet_s", 32),
        # The weights of a convolution are a mixture that depends on the example.
        row(
            "condconv",
            32,
            timm.models.EfficientNet,
            block_args=efficientnet_builder.decode_arch_def(
                [["ds_r1_k3_s1_e1_c16_se0.25"], ["ir_r1_k5_s2_e4_c24_se0.25_cc4"], ["ir_r2_k3_s1_e4_c32_se0.25_cc4"]]
            ),
            stem_size=16,
            num_features=64,
        ),
        row("tinynet_e", 32),
        row("fasternet_t0", 32),
        row("rexnet_100", 32, **NO_DROPOUT),
        row("repghostnet_050", 32, **NO_DROPOUT),
        row("ghostnet_050", 32, **NO_DROPOUT),
        row("ghostnetv2", 64, timm.models.GhostNet, cfgs=GHOSTS, version="v2", **NO_DROPOUT),
        row("ghostnetv3", 64, timm.models.GhostNet, cfgs=GHOSTS, version="v3", **NO_DROPOUT),
        row("hrnet", 32, timm.models.HighResolutionNet, cfg=high_resolution()),
        row("dla46x_c", 32),
        row("dpn48b", 32),
        row("cs3darknet_focus_s", 32),
        row("cspnext_tiny", 32),
        row("hgnetv2_b0", 32),
        row("tresnet_m", 32, **ONE_BLOCK_EACH),
        row("ese_vovnet19b_slim_dw", 32),
        row(
            "selecsls",
            32,
            timm.models.SelecSls,
            cfg={
                "block": selecsls.SelecSlsBlock,
                "features": [(32, 0, 32, 32, True, 2), (32, 32, 32, 64, False, 1), (64, 0, 48, 48, True, 2)],
                "head": [(48, 64, 3, 2), (64, 64, 3, 1)],
                "num_features": 64,
                "feature_info": [],
            },
        ),
    )
}


CHOSEN = (
    "vit_tiny_patch16_224",
    "vit_tiny_r_s16_p8_224",
    "vit_base_patch16_rope_mixed_224",
    "naflexvit_base_patch16_map",
    "naflexvit_base_patch16_parfac_gap",
    "deepseek_vit_412m",
    "gemma4_vit_167m",
    "convit_tiny",
    "volo_d1",
    "swinv2_tiny_window8_256",
    "test_coatnet",
    "mvitv2",
    "levit_128s",
    "coat_tiny",
    "hiera_tiny_224",
    "hieradet_small",
    "sequencer2d_s",
    "efficientformerv2_s0",
    "lowformer_b0",
    "starnet_s050",
    "mixer",
    "resmlp",
    "poolformer",
    "convnext_zepto_rms_ols",
    "test_nfnet",
    "dm_nfnet",
    "resnetv2_50x1_bit",
    "resnet26 groupnorm",
    "test_efficientnet_ln",
    "test_efficientnet_evos",
    "vgg",
    "test_resnet",
    "res2next50",
    "skresnet18",
    "halonet",
    "lambda",
    "nasnet",
    "mobilenetv5_base",
    "condconv",
    "ghostnetv2",
    "tresnet_m",
)
"""Together they have every kind of layer and every function of autograd that the table has (`zoo.kinds`)."""


def build(row: Row) -> nn.Module:
    """The model in double precision, every source of chance asleep and no part of it without effect on the loss."""
    if row.constructor is None:
        model = timm.create_model(row.name, pretrained=False, num_classes=5, **row.options)
    else:
        model = row.constructor(num_classes=5, **row.options)
    # A branch that starts at zero (the scale of its last norm, LayerScale, skip gain) would hide all that is in it.
    for parameter in model.parameters():
        if bool((parameter == parameter.flatten()[0]).all()):
            nn.init.uniform_(parameter, *((0.5, 1.5) if bool((parameter == 1).all()) else (-0.5, 0.5)))
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__.startswith("DropPath"):
            module.eval()
    return model.double()


def freeze_batch_norms(model: nn.Module, images: Tensor) -> None:
    """At statistics near to those of the images: at any others the signal dies on its way through a deep model."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model(images)
    for norm in norms:
        norm.eval()
        norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.5, 1.5)).add_(0.1)


def problem(row: Row) -> tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """What a `ClippedGradient` is made of and called with: the model, two images, their classes and the loss."""
    model = build(row)
    images, targets = torch.randn(2, 3, row.side, row.side, dtype=torch.float64), torch.arange(2)
    freeze_batch_norms(model, images)
    with torch.no_grad():
        largest = model(images).abs().max()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        # Without training logits can be huge, and a class that is certain has no gradient.
        return functional.cross_entropy(outputs / largest, targets)

    return model, images, targets, loss


def unused(row: Row, model: nn.Module) -> tuple[str, ...]:
    """The names of the parameters that the loss does not depend on."""
    return tuple(name for name, _ in model.named_parameters() if row.unused and name.startswith(row.unused))
