//! Of the program's `link`: frames, their numbers, and what is in them.

#[path = "../../dispatcher/src/dispatcher/link/backend_message.rs"]
pub mod backend_message;
#[path = "../../dispatcher/src/dispatcher/link/layout.rs"]
pub mod layout;
#[path = "../../dispatcher/src/dispatcher/link/login_changes.rs"]
pub mod login_changes;
#[path = "../../dispatcher/src/dispatcher/link/questions.rs"]
pub mod questions;
#[path = "../../dispatcher/src/dispatcher/link/wire.rs"]
pub mod wire;
