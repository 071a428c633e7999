"""Targets: boxes, keypoints, polygons and masks that move with the images that they are of."""
