"""Volumes: stages that crop, flip and turn them and change their values, and what the model receives."""
