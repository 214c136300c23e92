"""Models behind OpenAI-compatible endpoints, and the HTTP client that talks to them."""
