"""Importing: recipes of what torchvision's transforms and timm's arguments describe; `Recipe.from_...` calls it.

Nothing of torchvision or timm is imported: transforms are known by the names of their classes and modules, and read by
their public attributes.
"""
