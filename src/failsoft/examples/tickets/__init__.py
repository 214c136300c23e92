"""Tickets: an example whose tool acts, so a person is asked first and nothing happens twice."""
