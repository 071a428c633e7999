"""AutoAugment's policies, as published (Cubuk et al., CVPR 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Policy = Literal["imagenet", "cifar10", "svhn"]


class PolicyOperation(NamedTuple):
    """Half of a sub-policy.

    Attributes:
        operation: Name of the operation.
        probability: Probability that the operation is applied.
        magnitude: Magnitude, as the table of operations means it, such as a bin 0 .. 9; what it is does not matter to
            operations without a range.
    """

    operation: str
    probability: float
    magnitude: float


SubPolicy = tuple[PolicyOperation, PolicyOperation]


def sub_policies(*rows: tuple[str, float, float, str, float, float]) -> tuple[SubPolicy, ...]:
    """Make sub-policies of operation, probability and magnitude, twice."""
    return tuple((PolicyOperation(*row[:3]), PolicyOperation(*row[3:])) for row in rows)


# Operation, probability and magnitude, twice: appendix tables 7 (CIFAR-10), 8 (SVHN) and 9 (ImageNet) of the paper.
POLICIES: Mapping[Policy, tuple[SubPolicy, ...]] = {
    "imagenet": sub_policies(
        ("Posterize", 0.4, 8, "Rotate", 0.6, 9),
        ("Solarize", 0.6, 5, "AutoContrast", 0.6, 5),
        ("Equalize", 0.8, 8, "Equalize", 0.6, 3),
        ("Posterize", 0.6, 7, "Posterize", 0.6, 6),
        ("Equalize", 0.4, 7, "Solarize", 0.2, 4),
        ("Equalize", 0.4, 4, "Rotate", 0.8, 8),
        ("Solarize", 0.6, 3, "Equalize", 0.6, 7),
        ("Posterize", 0.8, 5, "Equalize", 1.0, 2),
        ("Rotate", 0.2, 3, "Solarize", 0.6, 8),
        ("Equalize", 0.6, 8, "Posterize", 0.4, 6),
        ("Rotate", 0.8, 8, "Color", 0.4, 0),
        ("Rotate", 0.4, 9, "Equalize", 0.6, 2),
        ("Equalize", 0.0, 7, "Equalize", 0.8, 8),
        ("Invert", 0.6, 4, "Equalize", 1.0, 8),
        ("Color", 0.6, 4, "Contrast", 1.0, 8),
        ("Rotate", 0.8, 8, "Color", 1.0, 2),
        ("Color", 0.8, 8, "Solarize", 0.8, 7),
        ("Sharpness", 0.4, 7, "Invert", 0.6, 8),
        ("ShearX", 0.6, 5, "Equalize", 1.0, 9),
        ("Color", 0.4, 0, "Equalize", 0.6, 3),
        ("Equalize", 0.4, 7, "Solarize", 0.2, 4),
        ("Solarize", 0.6, 5, "AutoContrast", 0.6, 5),
        ("Invert", 0.6, 4, "Equalize", 1.0, 8),
        ("Color", 0.6, 4, "Contrast", 1.0, 8),
        ("Equalize", 0.8, 8, "Equalize", 0.6, 3),
    ),
    "cifar10": sub_policies(
        ("Invert", 0.1, 7, "Contrast", 0.2, 6),
        ("Rotate", 0.7, 2, "TranslateX", 0.3, 9),
        ("Sharpness", 0.8, 1, "Sharpness", 0.9, 3),
        ("ShearY", 0.5, 8, "TranslateY", 0.7, 9),
        ("AutoContrast", 0.5, 8, "Equalize", 0.9, 2),
        ("ShearY", 0.2, 7, "Posterize", 0.3, 7),
        ("Color", 0.4, 3, "Brightness", 0.6, 7),
        ("Sharpness", 0.3, 9, "Brightness", 0.7, 9),
        ("Equalize", 0.6, 5, "Equalize", 0.5, 1),
        ("Contrast", 0.6, 7, "Sharpness", 0.6, 5),
        ("Color", 0.7, 7, "TranslateX", 0.5, 8),
        ("Equalize", 0.3, 7, "AutoContrast", 0.4, 8),
        ("TranslateY", 0.4, 3, "Sharpness", 0.2, 6),
        ("Brightness", 0.9, 6, "Color", 0.2, 8),
        ("Solarize", 0.5, 2, "Invert", 0.0, 3),
        ("Equalize", 0.2, 0, "AutoContrast", 0.6, 0),
        ("Equalize", 0.2, 8, "Equalize", 0.6, 4),
        ("Color", 0.9, 9, "Equalize", 0.6, 6),
        ("AutoContrast", 0.8, 4, "Solarize", 0.2, 8),
        ("Brightness", 0.1, 3, "Color", 0.7, 0),
        ("Solarize", 0.4, 5, "AutoContrast", 0.9, 3),
        ("TranslateY", 0.9, 9, "TranslateY", 0.7, 9),
        ("AutoContrast", 0.9, 2, "Solarize", 0.8, 3),
        ("Equalize", 0.8, 8, "Invert", 0.1, 3),
        ("TranslateY", 0.7, 9, "AutoContrast", 0.9, 1),
    ),
    "svhn": sub_policies(
        ("ShearX", 0.9, 4, "Invert", 0.2, 0),
        ("ShearY", 0.9, 8, "Invert", 0.7, 0),
        ("Equalize", 0.6, 0, "Solarize", 0.6, 6),
        ("Invert", 0.9, 0, "Equalize", 0.6, 0),
        ("Equalize", 0.6, 0, "Rotate", 0.9, 3),
        ("ShearX", 0.9, 4, "AutoContrast", 0.8, 0),
        ("ShearY", 0.9, 8, "Invert", 0.4, 0),
        ("ShearY", 0.9, 5, "Solarize", 0.2, 6),
        ("Invert", 0.9, 0, "AutoContrast", 0.8, 0),
        ("Equalize", 0.6, 0, "Rotate", 0.9, 3),
        ("ShearX", 0.9, 4, "Solarize", 0.3, 3),
        ("ShearY", 0.8, 8, "Invert", 0.7, 0),
        ("Equalize", 0.9, 0, "TranslateY", 0.6, 6),
        ("Invert", 0.9, 0, "Equalize", 0.6, 0),
        ("Contrast", 0.3, 3, "Rotate", 0.8, 4),
        ("Invert", 0.8, 0, "TranslateY", 0.0, 2),
        ("ShearY", 0.7, 6, "Solarize", 0.4, 8),
        ("Invert", 0.6, 0, "Rotate", 0.8, 4),
        ("ShearY", 0.3, 7, "TranslateX", 0.9, 3),
        ("ShearX", 0.1, 6, "Invert", 0.6, 0),
        ("Solarize", 0.7, 2, "TranslateY", 0.6, 7),
        ("ShearY", 0.8, 4, "Invert", 0.8, 0),
        ("ShearX", 0.7, 9, "TranslateY", 0.8, 3),
        ("ShearY", 0.8, 5, "AutoContrast", 0.7, 0),
        ("ShearX", 0.7, 2, "Invert", 0.1, 0),
    ),
}
