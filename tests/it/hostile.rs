//! What a stranger, a careless user or a broken client may do without others noticing.

mod availability;
