//! Floor ½: the one guarded HTTP client.
