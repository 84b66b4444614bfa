//! Floor 3: the commands of the program.
