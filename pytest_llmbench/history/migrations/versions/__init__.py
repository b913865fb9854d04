"""One file a revision; none is ever changed after a release."""
