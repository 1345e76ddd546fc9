"""What is learned: module, loss, tables, and their fit to the data."""
