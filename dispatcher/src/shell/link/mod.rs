//! What the dispatcher shares with the server's processes: memory, frames, and the connections
//! that carry the frames.

pub mod connections;
pub mod handshake;
pub mod layout;
pub mod memory;
pub mod wire;
