"""Policies: RandAugment, AutoAugment, TrivialAugment, AugMix and timm's, and the operations that they draw from."""
