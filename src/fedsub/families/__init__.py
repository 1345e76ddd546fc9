"""Methods with solvers of their own: the mixture of global and local models, matrix factorisation."""
