//! An outdated pool's sessions move to the pool that takes its place, some in each round.
//!
//! They may be very many, and everybody else is served meanwhile. Until the last has
//! moved the old pool hands out nobody: who waits there has his turn when he has moved,
//! which those that wait do first. Its backends go on with what they have in hand, and
//! then go. What is new to the pool that they move to may be outdated in turn before all
//! are there: then they move on to the next.

use super::{Action, Core, SessionId, Then};
use std::collections::VecDeque;

/// In a round: some 100 microseconds.
const MOVED_AT_ONCE: usize = 256;

#[derive(Debug)]
struct Move {
    old: u32,
    new: u32,
    /// Who was put into a line last: the next stands behind him.
    behind: Option<SessionId>,
}

/// Those that are under way, one after the other.
#[derive(Debug)]
pub struct Moves {
    all: VecDeque<Move>,
    at_once: usize,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves {
            all: VecDeque::new(),
            at_once: MOVED_AT_ONCE,
        }
    }
}

impl Moves {
    /// What comes in between comes in between.
    #[cfg(test)]
    pub fn move_few(&mut self) {
        self.at_once = 8;
    }

    pub fn has_more(&self) -> bool {
        !self.all.is_empty()
    }

    /// Are sessions of this pool still to move?
    pub fn go_from(&self, pool: u32) -> bool {
        self.all.iter().any(|one| one.old == pool)
    }

    /// It is no more: its last session has ended. Another pool may get its number, and
    /// nobody of that one is to move.
    pub fn forget_from(&mut self, pool: u32) {
        self.all.retain(|one| one.old != pool);
    }

    /// Is it still to get some?
    pub fn go_to(&self, pool: u32) -> bool {
        self.all.iter().any(|one| one.new == pool)
    }
}

impl Core {
    pub(super) fn begin_to_move(&mut self, old: u32, new: u32) {
        self.act(Action::TakeBack(old));
        self.then(Then::Move { old, new });
    }

    /// All that one pool has to another; then its backends go. Nobody is in its queue.
    pub(super) fn move_sessions(&mut self, old: u32, new: u32) {
        if self.pool(old).is_none() || self.pool(new).is_none() || old == new {
            return;
        }
        self.pools.have_moved(old, new);
        for one in self.moves.all.iter_mut().filter(|one| one.new == old) {
            (one.new, one.behind) = (new, None);
        }
        // A role becomes a superuser, and is none any more: who is left stays.
        self.moves.all.retain(|one| one.old != one.new);
        let behind = None;
        self.moves.all.push_back(Move { old, new, behind });
        self.move_on();
    }

    /// In each round as well: the next ones.
    pub(super) fn move_on(&mut self) {
        let mut may_move = self.moves.at_once;
        while may_move > 0 {
            let Some(mut one) = self.moves.all.pop_front() else {
                return;
            };
            while may_move > 0 && self.move_one(&mut one) {
                may_move -= 1;
            }
            self.in_want.insert(one.new);
            self.mark_dirty(one.new);
            if self.sessions.members(one.old) > 0 {
                self.moves.all.push_front(one);
                return;
            }
            self.retire_all(one.old);
        }
    }

    fn move_one(&mut self, one: &mut Move) -> bool {
        let (old, new) = (one.old, one.new);
        let Some(id) = self.sessions.move_one(old, new, &mut one.behind) else {
            return false;
        };
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        let bytes = session.context_bytes();
        if session.is_ungreeted() {
            self.act(Action::ForgetGreeting(id));
        }
        if let Some(pool) = self.pools.get_mut(old) {
            self.session_tally.take(pool.key(), 1);
        }
        if let Some(pool) = self.pools.get_mut(new) {
            self.session_tally.add(pool.key(), 1);
        }
        self.memory_moves(old, new, bytes);
        for number in [old, new] {
            self.count_use(number);
            self.count_reserve(number);
        }
        self.comes_into(id, old);
        true
    }
}
