"""Several simulated engines behind a router, on one axis of virtual time."""
