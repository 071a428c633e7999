"""One loader's batches for several trainings of a machine, each of which gets each batch once."""
