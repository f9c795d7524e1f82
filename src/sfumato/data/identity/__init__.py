"""Identity: what knows records and data sets again, under the owner's key or by near copies."""
