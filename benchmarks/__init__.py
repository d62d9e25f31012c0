"""Benchmarks of gnnagg: graphs, opponents, timing and the tables made from them."""
