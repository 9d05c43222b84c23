//! What this program shares with the server's processes: memory, frames, and
//! the connections by which these come.

pub mod connections;
pub mod handshake;
pub mod layout;
pub mod memory;
pub mod wire;
