"""Where samples and their labels come from.

ImageFolder          root/class/**/image.jpg           labels from the folders
FileList             any paths, or a CSV file's        labels given
TarShards            tar files as WebDataset's         labels from members
TorchDataset         a torch Dataset                   labels from its items
HuggingFaceImages    a datasets.Dataset                labels from a column
Arrays               uint8 images in one array         labels given
Concat               several of these                  theirs
Subset               some samples of one of these      theirs, see Source.subset
"""

from dalirefurb.source.arrays import Arrays
from dalirefurb.source.contract import Concat, Source, Subset
from dalirefurb.source.dataset import TorchDataset
from dalirefurb.source.files import FileList, ImageFolder
from dalirefurb.source.hugging_face import HuggingFaceImages
from dalirefurb.source.tar import TarShards

__all__ = [
    "Arrays",
    "Concat",
    "FileList",
    "HuggingFaceImages",
    "ImageFolder",
    "Source",
    "Subset",
    "TarShards",
    "TorchDataset",
]
