"""What Strandline is measured against, and with: programs of others, started for a benchmark."""
