"""When things happen in a simulation: clients' devices, and the seconds of a round."""
