//! The two shared memories, as the dispatcher uses them.
//!
//! [`control`] is the memory that both sides write, word by word. [`arena`] is
//! the dispatcher's own: the heap in which session contexts rest; [`context`]
//! keeps the contexts themselves in it, and the changes that a backend has begun to send;
//! [`work`] applies these to a context, a slice a round.

pub mod arena;
pub mod context;
pub mod control;
pub mod work;

use crate::shell::link::layout::shared::{Entry, Item};

/// What an item accounts for; baton_delta_growth (delta.c) does the same sum.
fn bytes_of_item(content: arena::Content<'_>) -> i64 {
    let bytes = size_of::<Item>() + size_of::<Entry>() + content.key.len() + content.value.len();
    bytes as i64
}
