"""What was trained, in use: scores for new data, lists of items, a folder that needs no fedsub."""
