"""Memory: what was said, what was noted, and what is like it; each tenant has its own."""
