"""`python -m gaussbias.theories --data SOURCE`: how far formulas get on a data set, without any network."""
