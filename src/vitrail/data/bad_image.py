"""The error of a file that cannot be used as an image."""

from vitrail.errors import VitrailError


class BadImage(VitrailError):
    """A file that cannot be used as an image, named with its reason."""
