//! Floor 1: read packs from disk.
