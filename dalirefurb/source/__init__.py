"""Where samples and their labels come from.

ImageFolder    root/class/**/image.jpg     labels from the folders
FileList       any paths                   labels given
Arrays         uint8 images in one array   labels given
"""

from dalirefurb.source.arrays import Arrays
from dalirefurb.source.contract import Source
from dalirefurb.source.files import FileList, ImageFolder

__all__ = ["Arrays", "FileList", "ImageFolder", "Source"]
