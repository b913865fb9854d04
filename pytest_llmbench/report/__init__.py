"""What is left behind: the document (JSON, versioned, with a schema) and the table a person pastes into a post."""
