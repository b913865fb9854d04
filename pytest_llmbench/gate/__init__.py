"""The gate: pure decisions over values. What is a regression, what the machine did, how sure that is."""
