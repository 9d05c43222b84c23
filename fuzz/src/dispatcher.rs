//! Stands where the program's own `dispatcher` is, with those of its modules that
//! are fuzzed and what they need.

#[path = "../../dispatcher/src/dispatcher/batch_scheduling.rs"]
pub mod batch_scheduling;
#[path = "link.rs"]
pub mod link;
#[path = "../../dispatcher/src/dispatcher/plaintext.rs"]
pub mod plaintext;
#[path = "../../dispatcher/src/dispatcher/sys/mod.rs"]
pub mod sys;
#[path = "../../dispatcher/src/dispatcher/tls/mod.rs"]
pub mod tls;
