"""The kernels beside the usual way of doing them: `python -m benchmarks`."""
