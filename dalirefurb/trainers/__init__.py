"""Loaders inside trainers: one module for each, imported by name only, since each needs its trainer's package.

lightning       Lightning 2 and Fabric: a data module, and callbacks
accelerate      Accelerate: what takes the place of `accelerator.prepare` for a loader
transformers    Hugging Face's Trainer, whose datasets may be loaders
timm            timm's scripts: what they ask of a loader
"""
