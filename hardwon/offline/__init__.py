"""What the offline methods share: collected solutions, fits to them, and what stands around a fit."""
