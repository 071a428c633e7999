"""Where samples and their labels come from.

ImageFolder          root/class/**/image.jpg           labels from the folders
FileList             any paths, or a CSV file's        labels given
TarShards            tar files as WebDataset's         labels from members
TorchDataset         a torch Dataset                   labels from its items
HuggingFaceImages    a datasets.Dataset                labels from a column
Arrays               uint8 images in one array         labels given
Volumes              arrays of voxels, or their files  labels of voxels, or given
Concat               several of these                  theirs
Subset               some samples of one of these      theirs, see Source.subset
"""

from dalirefurb.source.arrays import Arrays as Arrays
from dalirefurb.source.contract import Concat as Concat
from dalirefurb.source.contract import Source as Source
from dalirefurb.source.contract import Subset as Subset
from dalirefurb.source.dataset import TorchDataset as TorchDataset
from dalirefurb.source.files import FileList as FileList
from dalirefurb.source.files import ImageFolder as ImageFolder
from dalirefurb.source.hugging_face import HuggingFaceImages as HuggingFaceImages
from dalirefurb.source.tar import TarShards as TarShards
from dalirefurb.source.volumes import Volumes as Volumes
