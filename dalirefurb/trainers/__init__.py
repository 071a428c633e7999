"""Loaders inside trainers: one module for each, imported by name only, since each needs its trainer's package."""
