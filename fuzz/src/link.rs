//! Of the program's `link`: frames, and their numbers.

#[path = "../../dispatcher/src/dispatcher/link/layout.rs"]
pub mod layout;
#[path = "../../dispatcher/src/dispatcher/link/wire.rs"]
pub mod wire;
