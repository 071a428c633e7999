"""Two threads that turn plans into batches."""
