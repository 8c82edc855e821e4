"""Questions made by rules from the passages of an encyclopedia: facts, entities, questions, splits."""
