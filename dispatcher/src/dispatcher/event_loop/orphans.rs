//! Backends of an earlier dispatcher, which serve its sessions to their end.
//!
//! The memory says which processes these are, and is not believed: what is no child
//! of the postmaster is none (`is_backend`), and from then on it is a descriptor
//! that tells when one has ended.

use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::memory::control::Control;
use crate::dispatcher::scheduler::Scheduler;
use crate::dispatcher::sys::process;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

/// So long after the start they are looked at in each tick: most have no session
/// and end as soon as they notice.
const END_US: u64 = 5_000_000;

/// Their slots.
pub struct Orphans {
    control: Control,
    slots: Vec<(u32, OwnedFd)>,
}

/// A live backend of the server, if this number is one's.
pub fn is_backend(pid: u32, postmaster: u32) -> Option<OwnedFd> {
    let pidfd = process::pidfd(pid).ok()?;
    process::is_child(pid, &pidfd, postmaster).then_some(pidfd)
}

impl Orphans {
    pub fn new(control: Control, slots: Vec<(u32, OwnedFd)>) -> Orphans {
        Orphans { control, slots }
    }

    pub fn count(&self) -> usize {
        self.slots.len()
    }

    pub fn are_expected_to_end(&self, now_us: u64) -> bool {
        !self.slots.is_empty() && now_us < END_US
    }

    /// When one has ended its slots are free, and so is that of a session that one
    /// has ended. True if one has ended.
    pub fn sweep(&mut self, scheduler: &mut Scheduler) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let control = self.control;
        for (index, slot) in control.sessions.iter().enumerate() {
            let is_left = slot.state.load(SeqCst) != STATE_FREE
                && slot.owner.load(SeqCst) == 0
                && !scheduler.has_session_in(index as u32);
            if is_left {
                control.clear_session(index as u32);
            }
        }
        let mut ended = HashSet::new();
        self.slots.retain(|(slot, process)| {
            let has_ended = process::has_ended(process);
            if has_ended {
                ended.insert(*slot);
            }
            !has_ended
        });
        if ended.is_empty() {
            return false;
        }
        for (index, session) in control.sessions.iter().enumerate() {
            let holder = session.owner.load(SeqCst).checked_sub(1);
            if holder.is_some_and(|slot| ended.contains(&slot)) {
                control.clear_session(index as u32);
            }
        }
        for slot in ended {
            control.free_backend(slot);
            scheduler.slot_freed(slot);
        }
        true
    }
}
