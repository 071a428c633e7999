"""What --help explains beyond single arguments: what the commands do, what they print, and examples."""

from __future__ import annotations

from typing import Any

from dalirefurb.cli.techniques import TECHNIQUES
from dalirefurb.errors import how_to_install

DESCRIPTION = """\
Data refurbishing: train on images whose augmentation is partly cached and reused."""

EPILOG = """\
exit status: 0 done; 1 an image cannot be used, a store is damaged, the machine has failed, doctor has found what will
fail, tune has measured too little to recommend anything, or tune --verify has not reached what was predicted; 2
anything else to correct; 130 interrupted; 141 whoever read the output has gone; 143 terminated, 129 hung up"""

_DEMO = how_to_install("demo")

_TECHNIQUES = "\n".join(f"  {name:<12}{technique.summary}" for name, technique in TECHNIQUES.items())

TRAIN: dict[str, Any] = {
    "help": "train on a folder of images",
    "description": """\
Train a small residual network on the images of FOLDER, and show what the data cost.

An image is decoded, cropped, flipped and changed by layers of RandAugment. The first of these stages are the
partial augmentation: its result is cached and reused in as many epochs as the reuse factor says. The others are
the final augmentation, drawn afresh every time. dalirefurb show says how many images differ from each other then.

Nothing is kept of a run that is interrupted, and none can be resumed: pipelines/imagenet_randaugment.py can.""",
    "epilog": f"""\
techniques:
{_TECHNIQUES}

what is printed for each epoch:
  images/s   throughput of training, data preparation and the network's step included
  hits       images whose partial augmentation came from the cache
  misses     images that were read, decoded and augmented from the start. With refurbish the first epoch only
             misses; later ones miss 1 / reuse factor of the images
  waiting    share of the time in which the network waited for data. The rest are its own steps, which are
             slower, too, while data preparation keeps the same cores busy
  ms/batch   time from batch to batch, the median and the 95th percentile
  loss, accuracy
             of the network on the augmented training images, as it learns from them; with --val-share also the
             accuracy on images that it does not learn from
Then a line says whether training waited for data after the first epoch, and what would help most.

examples:
  dalirefurb train photos/                          reuse factor 3, the paper's order of stages
  dalirefurb train photos/ --technique standard     to compare with
  dalirefurb train photos/ --val-share 0.1          judge by a tenth of the images, which are not learned from
  dalirefurb train photos/ --order crop_last        only crop and flip are fresh: faster, nearly as diverse
  dalirefurb train photos/ --split flip --layers 1  cache what comes before the flip
  dalirefurb train photos/ --technique echo --echoing-factor 3 --split end
                                                    data echoing after augmentation; without --split, before
  dalirefurb train photos/ --on-bad-sample replace --quarantine bad.jsonl
                                                    with files that are broken""",
}

SHOW: dict[str, Any] = {
    "help": "draw what is cached, and what the network sees",
    "description": """\
Draw what refurbishing does to images, into a PNG.

For four images of FOLDER: the original; what the partial augmentation made of it, which is cached; and what the final
augmentation made of that, afresh in each epoch. Then the same for the second version, drawn anew. All is drawn as
training with this seed draws it, and it is said which share of the images differs from each other. With --masks,
--coco or --yolo it is of images that have objects, and what belongs to them is drawn on all of them. Without FOLDER,
the images are photographs that ship with scikit-image.""",
    "epilog": f"""\
what is drawn:
  dalirefurb show               blue frames: cached. Orange frames: fresh at every use
  dalirefurb show --operations  the first image under each operation of the preset, at several magnitudes in the
                                paper's units; orange frames: magnitudes that training uses
  dalirefurb show --operations --preset stages
                                the first image after each stage that recipes are made of, drawn at random
  dalirefurb show --plan        which epochs and which batches miss, that is, read and augment from the start: with
                                refurbishing, and without its two ways to spread misses evenly
  dalirefurb show --plan --technique NAME
                                what any technique computes, what it takes from the cache, and how often it serves
                                a sample. The names are those of dalirefurb train; of autoassist it is what it plans
                                as long as nothing is left out

Pictures need {_DEMO}.

examples:
  dalirefurb show                                     RandAugment, its second layer is fresh
  dalirefurb show photos/ --order crop_last           only crop and flip are fresh
  dalirefurb show photos/ --split flip                see what is cached if it ends before the flip
  dalirefurb show photos/ --coco instances.json       with boxes and outlines, which move with the images
  dalirefurb show photos/ --preset yolo               mosaics, and which sample each part of them is of
  dalirefurb show --operations --preset trivial_augment --out wide.png
  dalirefurb show --plan --num-samples 1281167 --batch-size 1024
  dalirefurb show --plan --technique smartcache --replace-percent 0.05
  dalirefurb show --plan --bandwidth 2.8TB --batch-size 256
                                                      what an H100 is given for a batch, counted without one""",
}

DEMO: dict[str, Any] = {
    "help": "see what refurbishing brings on this machine",
    "description": f"""\
Make a folder of JPEGs from photographs that ship with scikit-image. Print how fast they are loaded, by dalirefurb, by
stock DALI and by torch's DataLoader with Pillow, and how fast a small network is trained on them, with and without
refurbishing. Also draw the pictures of dalirefurb show. Takes about two minutes on two cores, and half a minute more
the first time, when kernels are compiled.
Needs {_DEMO}.""",
    "epilog": """\
examples:
  dalirefurb demo
  dalirefurb demo --folder photos   keep the images, then: dalirefurb train photos
  dalirefurb demo --quick           a quarter of a minute; too short to say how fast anything is""",
}

KEEP: dict[str, Any] = {
    "help": "decode a folder's images once, for all trainings on this machine",
    "description": """\
Decode the images of FOLDER, and keep them in the folder KEEP, which any number of trainings read at the same time:
Kept(ImageFolder(FOLDER), KEEP). What is kept already is left as it is. Trainings fill a keep themselves; this does it
beforehand.""",
    "epilog": """\
examples:
  dalirefurb keep photos/ /local/keep
  dalirefurb keep photos/ /dev/shm/keep --size 100GB       in memory
  dalirefurb keep photos/ /dev/shm/keep --form planes      half the bytes, of JPEGs of 4:2:0
  dalirefurb keep /far/photos/ /local/files --form encoded
  dalirefurb cache verify /local/keep""",
}

CACHE: dict[str, Any] = {
    "help": "look after the file of a DiskStore, or the folder of a keep",
    "description": """\
Look after the file of a DiskStore, or the folder of a Kept: what is in it, whether it is intact, and how to be rid of
it.""",
    "epilog": """\
what there is to know:
  A damaged sample is never served: training finds out by its checksum, and computes the sample again. A store is
  inspected also while it is in use; it is verified and deleted only when it is not.

examples:
  dalirefurb cache inspect /local/cache   slots, samples held, and the fingerprint that a loader must match
  dalirefurb cache verify /local/cache    after a power failure, say
  dalirefurb cache purge /local/cache     give its space back""",
}

COMPILE: dict[str, Any] = {
    "help": "compile the kernels, for an image of a container",
    "description": """\
Compile the kernels for this processor, and keep them on disk, where a loader finds them: in NUMBA_CACHE_DIR if it is
set, else beside the package or in the user's cache. Takes some seconds, and nothing where they are kept already.""",
    "epilog": """\
example, in a Dockerfile:
  ENV NUMBA_CACHE_DIR=/opt/dalirefurb-kernels
  RUN mkdir -m 777 -p $NUMBA_CACHE_DIR && dalirefurb compile && chmod -R a+rwX $NUMBA_CACHE_DIR""",
}

DOCTOR: dict[str, Any] = {
    "help": "examine this machine, and what is installed",
    "description": """\
Examine this machine and what is installed: do DALI, CUDA, CuPy, PyTorch and the driver fit together, how many cores may
be used and what keeps them busy, how much memory and how fast a disk there is. Takes less than ten seconds.""",
    "epilog": """\
what is printed, a line for each finding, with what to do about it:
  good     all is well
  note     to be known when figures of speed are read: such as a data set that the page cache holds already
  slow     a loader will be slower than it could be
  wrong    something will fail
  unknown  it could not be found out

exit status: 1 if something is wrong, else 0

examples:
  dalirefurb doctor
  dalirefurb doctor photos/ --json > machine.json""",
}

TUNE: dict[str, Any] = {
    "help": "is it the loader that training waits for, and what to set",
    "description": """\
Measure for two minutes what loading a folder costs on this machine, compute every recipe order, split, reuse factor and
store, have the best two and standard loading take turns, and say which to take, or to leave reuse off. Nothing else
should run meanwhile: where too little can be measured nothing is recommended, and what is missing is said.""",
    "epilog": """\
what is printed first, with --step-ms:
  DETECTED      training would be more than 1.5 times as fast if its batches were at hand
  POTENTIAL     more than 1.1 times
  NOT DETECTED  no more than that: leave reuse off, but for a reserve where a step is not 1.1 times as long as a batch
                takes
  INCONCLUSIVE  rounds of what was measured differed by more than 10 %, or were too few: nothing is recommended

How long a step takes is best measured in your own training script, on one batch again and again; or pass the step
itself as a function to dalirefurb.tune.

--machine FILE computes for a machine that you do not have, from --costs of one that you have:
  [machine]
  cores = 96
  gpus = 8
  memory = "900GB"
  disk = "3.5TB"                # a local one; left out: none
  source_bandwidth = "2GB"      # a second, of a network file system; left out: as measured
  [training]
  num_samples = 1281167
  batch_size = 1024             # of all GPUs together
  epochs = 90
  step_ms = 120                 # of a GPU's part of a batch
also: device_memory, page_cache, core_speed, disk_read and disk_write of [machine].

exit status: 1 if nothing is recommended, or --verify finds a prediction more than 10 % off, else 0

examples:
  dalirefurb tune photos/ --step-ms 85 --verify
  dalirefurb tune photos/ --memory 16GB --disk /local --json plan.json --picture plan.png
  dalirefurb tune --costs plan.json --machine big.toml""",
}
