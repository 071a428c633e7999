"""Targets: what belongs to an image beside a label, and moves with it: boxes, keypoints, polygons and masks.

    source ─▶ Annotated ─▶ Loader ─▶ images, targets
              what each     where the recipe has
              sample has    put it all

A recipe's stages each say where they put things, as one matrix for each image, so what belongs to an image is mapped
once, by all of them together, however the image itself was made: computed just then, or from a cache.

    Annotated(source, targets)       any source, with targets by name
    MaskFolder, CocoDetection,       of files as they usually lie
    YoloFolder
    objects_of                       targets of a data set of Hugging Face

    Boxes, Keypoints, Polygons       of objects, any number in each image
    InstanceMasks                    a mask of each object
    Objects                          what else is known of each object, such as its class
    Masks                            a number for each pixel
    Values                           what belongs to the image as a whole

A batch is `images, masks` where masks are the only target, else `images, targets` with a dictionary for each image.
"""

from dalirefurb.targets.annotated import Annotated as Annotated
from dalirefurb.targets.coco import CocoDetection as CocoDetection
from dalirefurb.targets.coco import objects_of as objects_of
from dalirefurb.targets.folders import MaskFolder as MaskFolder
from dalirefurb.targets.folders import YoloFolder as YoloFolder
from dalirefurb.targets.instance_masks import InstanceMasks as InstanceMasks
from dalirefurb.targets.kinds import Boxes as Boxes
from dalirefurb.targets.kinds import Keypoints as Keypoints
from dalirefurb.targets.kinds import Objects as Objects
from dalirefurb.targets.kinds import Polygons as Polygons
from dalirefurb.targets.kinds import Values as Values
from dalirefurb.targets.mask_images import Masks as Masks
