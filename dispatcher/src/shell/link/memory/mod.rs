//! The two shared memories, as the dispatcher uses them.
//!
//! [`control`] is the memory that both sides write, word by word. [`arena`] belongs to the
//! dispatcher: it is the heap in which session contexts rest. [`context`] keeps the contexts in
//! it, and the changes that backends have begun to send. [`work`] applies these changes, a
//! slice per round. [`remains`] reads the contexts of a dispatcher that has ended.

pub mod arena;
pub mod context;
pub mod control;
pub mod remains;
pub mod work;

use crate::shell::link::layout::shared::{Entry, Item};

/// The bytes that an item accounts for; baton_delta_growth (delta.c) computes the same sum.
fn bytes_of_item(content: arena::Content<'_>) -> i64 {
    let bytes = size_of::<Item>() + size_of::<Entry>() + content.key.len() + content.value.len();
    bytes as i64
}
