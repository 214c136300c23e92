"""Complete, working uses of the platform."""
