"""Earlier sessions: the store with its baselines (``store``), a card's baselines as a file (``file``), named sessions (``saved``)."""
