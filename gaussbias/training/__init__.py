"""One run's life: where it runs, how it begins, goes on and ends, and what it takes from other runs."""
