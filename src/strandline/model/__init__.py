"""The values in the catalog: descriptors, data types, names."""
