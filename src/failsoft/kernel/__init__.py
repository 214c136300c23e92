"""The resilience kernel: deadlines, tickets, bulkheads, breakers, retries, ladders, and the one order of them."""
