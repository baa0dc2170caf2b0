"""What a person sees: tables, pages and charts of values that others derived."""
