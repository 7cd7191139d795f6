"""`python -m gaussbias.lens CHECKPOINT... --data SOURCE`: networks trained elsewhere, measured as ours are."""
