//! Of the program's `link`: frames, their numbers, and what is in them.

#[path = "../../dispatcher/src/shell/link/layout.rs"]
pub mod layout;
#[path = "../../dispatcher/src/shell/link/wire.rs"]
pub mod wire;
