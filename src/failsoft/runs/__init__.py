"""A run from request to answer: plan, schedule, degrade, answer."""
