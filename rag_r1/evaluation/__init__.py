"""Many questions answered outside training: traces, filters, evaluation."""
