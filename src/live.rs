//! Floor 1: who is listening.
