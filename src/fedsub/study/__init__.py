"""Beyond one run: experiments, comparisons, tuning, reports, costs, benchmarks."""
