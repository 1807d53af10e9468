"""One file a method, which begins with the algorithm of its paper, and what several methods share."""
