"""Other people's models, layouts and generate functions."""
