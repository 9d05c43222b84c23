//! What this program shares with the server's processes: memory, frames, and
//! the connections to backends, to the launcher and to views.

mod backend_frames;
pub mod control;
pub mod handshake;
pub mod launcher;
pub mod layout;
pub mod memory;
pub mod wire;
