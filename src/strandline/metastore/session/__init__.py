"""The two ways to speak `Session`: in process, and over HTTP to a node."""
