"""Two threads that turn plans into batches.

To read: `batch_group`, `in_flight` and `cache_client` (what a group is, and where its images come from); `preparer`,
`backends`, `finals` and `finisher` (what the threads do); `engine` and `build` (how they begin, end, and are put
together); `prefetch` and `memory` (how far ahead). `cuda`, `volumes` and `target_maker` are further ways to make images
and targets, and `cursor`, `loader_view`, `batch_tensors` and `recipe_checks` what a `Loader` is made of beside its
engine.
"""
