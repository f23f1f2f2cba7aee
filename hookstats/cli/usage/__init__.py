"""The help and the arguments of each subcommand: one module per subcommand.

`hookstats.cli` has a module of the same name with the function that runs it. It is imported only
when the subcommand runs: these modules import neither torch nor NumPy nor pyarrow, so that help
and mistyped commands are answered at once.
"""
