//! The use cases of a conversation: messages, the agent loop, commands, prompts to the user, menus.

pub mod agent_loop;
mod approval_commands;
pub mod attachments;
pub mod branches;
pub mod commands;
pub mod completions;
pub mod conversations;
pub mod elicitations;
pub mod export;
pub mod feedback;
pub mod flows;
pub mod menu;
pub mod prompt_answers;
pub mod prompts;
pub mod resources;
pub mod responses;
mod titles;
mod tool_search;
pub mod transcript;
