//! The tools that a principal may see and call, the one gate for every call, approvals and skills.

pub mod approvals;
pub mod client_tools;
pub mod elicitations;
pub mod gate;
pub mod skills;
pub mod toolset;
