"""Everything that travels inside the .mar: from request bytes to faces."""
