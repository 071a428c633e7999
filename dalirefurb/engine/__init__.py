"""Two threads that turn plans into batches.

To read: `batch_group`, `cache_plan`, `in_flight` and `cache_client` (what a group is, and where its images come from);
`preparer`, `backends`, `finals` and `finisher` (what the threads do); `engine` and `build` (how they begin, end, and
are put together); `prefetch` and `memory` (how far ahead). What is named `cuda_`, `volumes`, `target_maker` and
`partners` are further ways to make images and targets, and `cursor`, `checkpoint`, `loader_view`, `batch_tensors`,
`own_versions` and `behind` what a `Loader` is made of beside its engine.
"""
