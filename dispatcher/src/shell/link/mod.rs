//! What this program shares with the server's processes: memory, frames, and
//! the connections by which these come.

pub mod backend_message;
pub mod connections;
pub mod handshake;
pub mod layout;
pub mod login_changes;
pub mod memory;
pub mod questions;
pub mod rows;
pub mod wire;
