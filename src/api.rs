//! Floor 3: every route. HTTP in, app call, JSON out.
