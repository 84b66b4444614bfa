//! The tools that a principal may see and call, the one gate for every call, approvals and skills.

pub mod approvals; // requests for consent: asked, decided, executed, ended
pub mod client_tools; // the tools of an MCP client, which calls them itself
pub mod elicitations; // rows of the questions that servers ask users, and who waits for the answer
pub mod gate; // the one gate for every call
pub mod kept_calls; // calls that a tenant keeps to try policies with
pub mod policy_trials; // what rules would say of examples and kept calls
pub mod skills; // skills of packs: listed, found in a text, turned into calls
pub mod toolset; // the tools that one principal may see and call
