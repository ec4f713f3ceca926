"""Plan a deployment: tokens, memory, one instance's limit, replicas, cost, alternatives."""
