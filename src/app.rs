//! Floor 2: use cases.
