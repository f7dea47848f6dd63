"""What the catalog is made of: descriptors, data types, names."""
