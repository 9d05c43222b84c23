//! Of the program's `link`: frames, their numbers, and what is in them.

#[path = "../../dispatcher/src/shell/link/backend_message.rs"]
pub mod backend_message;
#[path = "../../dispatcher/src/shell/link/layout.rs"]
pub mod layout;
#[path = "../../dispatcher/src/shell/link/login_changes.rs"]
pub mod login_changes;
#[path = "../../dispatcher/src/shell/link/questions.rs"]
pub mod questions;
#[path = "../../dispatcher/src/shell/link/wire.rs"]
pub mod wire;
