//! Floor 3: the commands of the program.

pub mod tenant;
pub mod token;
