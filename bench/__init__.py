"""Microbenchmarks of the operators beside their peers and beside the machine's own limits; see docs/benchmarks.md."""
