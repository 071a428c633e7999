"""Bytes of samples on their way to a decoder: read, looked at, replaced where they are bad."""
