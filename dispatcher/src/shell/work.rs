//! What a turn of the loop does, in pieces (event_loop/turns.rs).
//!
//! A piece takes about a quarter of a microsecond on a machine of these years: a look at
//! an item of a context, or 512 bytes of a long value. Other things count for several.

pub const EVENT: usize = 8;
pub const PACKET: usize = 8;
/// Of the core's.
pub const ACTION: usize = 16;
pub const ROW: usize = 16;
/// A step of a login.
pub const LOGIN: usize = 32;
/// Its end, with that of its connection.
pub const LOGIN_END: usize = 128;
