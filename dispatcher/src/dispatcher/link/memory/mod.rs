//! The two shared memories, as the dispatcher uses them.
//!
//! [`control`] is the memory that both sides write, word by word. [`arena`] is
//! the dispatcher's own: the heap in which session contexts rest; [`context`]
//! keeps the contexts themselves in it.

pub mod arena;
pub mod context;
pub mod control;
