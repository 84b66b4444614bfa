//! The use cases of a conversation: messages, the agent loop, commands, prompts to the user, menus.

pub mod agent_loop; // the worker of a run: model, calls, model
mod approval_commands; // /approve, /reject and their kin
pub mod attachments; // files of messages
pub mod branches; // edited messages and repeated answers
pub mod commands; // slash commands
pub mod completions; // a plain call of the model: no tools, no conversation, no run
pub mod conversations; // conversations and their messages; a message is posted here
pub mod elicitations; // questions of servers, as a chat asks them
pub mod export; // a conversation as a document
pub mod feedback; // thumbs up and down
pub mod flows; // the chat that asks for a server's credential
pub mod menu; // the menu of an agent: servers, tools, skills
pub mod prompt_answers; // a message that answers a question of a flow or of a server
pub mod prompts; // prompts that servers offer
pub mod resources; // resources that results link to
pub mod responses; // OpenAI's responses and conversations, as ours
mod skill_forms; // asks for what the words of a skill do not say
mod titles; // titles of conversations
mod tool_search; // the tools that a model is offered, and the tool that searches them
pub mod transcript; // questions that come with their whole conversation, as OpenAI clients send them
pub mod words; // the index of what was said, for the search
