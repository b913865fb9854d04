"""Old against new, measured in turns in one session (``--llmbench-against``): which cells, the pairs, and what they say."""
