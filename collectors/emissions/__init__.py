"""What a kilowatt-hour emits: factors from a static table and from live providers."""
