"""Steps of a response, and the stages of direct advantage: what each step is worth, and training on it."""
