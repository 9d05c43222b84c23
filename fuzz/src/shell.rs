//! Stands where the program's own `shell` is, with those of its modules that
//! are fuzzed and what they need.

#[path = "../../dispatcher/src/shell/batch_scheduling.rs"]
pub mod batch_scheduling;
#[path = "link.rs"]
pub mod link;
#[path = "../../dispatcher/src/shell/sys/mod.rs"]
pub mod sys;
#[path = "../../dispatcher/src/shell/tls/mod.rs"]
pub mod tls;

/// No target logs.
pub mod log {
    use tracing::Level;

    pub fn start_by(_: impl Fn(Level, &str) + Send + Sync + 'static) {}
    pub fn write(_: &str, _: &str) {}

    pub mod lines {
        pub fn own(_: tracing::Level, _: &str) {}
    }
}
