"""The zoo: small programs of all kinds, run with and without `hookstats run`."""
