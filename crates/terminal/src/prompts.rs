//! The prompts before the line that is typed, and the help.

pub const HELP: &str = "\
/new – begin a new conversation        /history – show this one
/conversations – list earlier ones     /conversations 2 – go on with the second
/details – the last calls of tools     Ctrl-C – stop an answer
/quit – leave (or Ctrl-D)              Tab – complete a command, a server or a code
What waits for your decision is told by itself; the prompt counts it.
The agent's own commands:";

/// The prompts, indexed by the number of waiting approvals. All have the same width, because the line that is being
/// typed follows them.
pub fn by_number() -> Vec<String> {
    let counted = (1..=9).map(|waiting| format!("({waiting}) › "));
    std::iter::once("you › ".to_owned())
        .chain(counted)
        .chain(std::iter::once("(9+)› ".to_owned()))
        .collect()
}
