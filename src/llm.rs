//! Floor 1: one step of a model: messages and tools in, a stream of deltas out.
