//! The lists through the table of sessions: of a pool's sessions, and of those
//! that wait, in the order of their turns. To link and to unlink costs nothing,
//! wherever in its list a session is.
//!
//! Who waits stands in one of two lines, and the two are served by turns. Those
//! that always ask stand in the one, those that have been silent for longer than
//! the others wait, and new ones, in the other: so these wait for one another only,
//! and those lose no more than every other turn.

use super::{index_of, name, Session, SessionId, Sessions, Whereabouts};

/// None of the list.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
pub struct Link {
    before: u32,
    after: u32,
}

pub const UNLINKED: Link = Link {
    before: NONE,
    after: NONE,
};

/// A list through the table.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    length: usize,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
    length: 0,
};

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All of a pool's sessions.
    Pool = 0,
    /// Those that wait and are quiet or new.
    Quiet = 1,
    /// The others that wait.
    Busy = 2,
}

impl Of {
    /// Which of a session's two links: it stands in one line at most.
    fn link(self) -> usize {
        usize::from(self != Of::Pool)
    }
}

/// A pool's.
#[derive(Clone, Copy)]
pub struct Lists {
    lists: [List; 3],
    /// Whose turn it is.
    busy_is_next: bool,
    /// Of the pool's sessions, those that are still to be greeted.
    ungreeted: usize,
}

pub const NOBODY: Lists = Lists {
    lists: [EMPTY; 3],
    busy_is_next: false,
    ungreeted: 0,
};

impl Sessions {
    fn of(&self, pool: u32, of: Of) -> &List {
        &self.lists[pool as usize].lists[of as usize]
    }

    pub fn waiting(&self, pool: u32) -> usize {
        self.of(pool, Of::Quiet).length + self.of(pool, Of::Busy).length
    }

    pub fn members(&self, pool: u32) -> usize {
        self.of(pool, Of::Pool).length
    }

    /// Those that have been greeted.
    pub fn greeted_members(&self, pool: u32) -> usize {
        self.members(pool) - self.lists[pool as usize].ungreeted
    }

    pub(super) fn count_ungreeted(&mut self, pool: u32, was: Whereabouts, to: Whereabouts) {
        let ungreeted = &mut self.lists[pool as usize].ungreeted;
        *ungreeted += usize::from(to.is_ungreeted());
        *ungreeted -= usize::from(was.is_ungreeted());
    }

    fn first_of(&self, pool: u32, of: Of) -> Option<SessionId> {
        self.in_slot(self.of(pool, of).first)
    }

    /// Who is served next.
    pub fn first_waiting(&self, pool: u32) -> Option<SessionId> {
        let (first, second) = match self.lists[pool as usize].busy_is_next {
            true => (Of::Busy, Of::Quiet),
            false => (Of::Quiet, Of::Busy),
        };
        self.first_of(pool, first)
            .or_else(|| self.first_of(pool, second))
    }

    /// Who has waited longest.
    pub fn longest_waiting(&self, pool: u32) -> Option<SessionId> {
        let turn = |id: &SessionId| self.table[index_of(*id) as usize].turn;
        [Of::Quiet, Of::Busy]
            .into_iter()
            .filter_map(|of| self.first_of(pool, of))
            .min_by_key(turn)
    }

    /// Who comes after this one, which waits, where all are gone through.
    pub fn waiting_behind(&self, session: SessionId) -> Option<SessionId> {
        let found = self.get(session)?;
        let behind = self.in_slot(found.links[found.line.link()].after);
        match found.line {
            Of::Quiet => behind.or_else(|| self.first_of(found.pool, Of::Busy)),
            _ => behind,
        }
    }

    /// All that wait, one line after the other.
    pub fn fifo(&self, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.list(Of::Quiet, pool).chain(self.list(Of::Busy, pool))
    }

    /// One of this line goes, or has come back without having got away.
    pub(super) fn takes_turns(&mut self, pool: u32, line: Of, has_gone: bool) {
        self.lists[pool as usize].busy_is_next = (line == Of::Busy) != has_gone;
    }

    /// All sessions of a pool.
    #[cfg(test)]
    pub fn of_pool(&self, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.list(Of::Pool, pool)
    }

    /// The first of a pool's sessions becomes the last: who goes through them some at
    /// a time takes as many as there were.
    pub fn rotate(&mut self, pool: u32) -> Option<SessionId> {
        let id = self.first_of(pool, Of::Pool)?;
        self.unlink(Of::Pool, index_of(id));
        self.link(Of::Pool, index_of(id), NONE);
        Some(id)
    }

    pub(in crate::core) fn list(&self, of: Of, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        let mut next = self.of(pool, of).first;
        std::iter::from_fn(move || {
            let found = self.table.get(next as usize)?;
            let id = name(found.generation, next);
            next = found.links[of.link()].after;
            Some(id)
        })
    }

    /// Into its line, by turn: at one of its ends, as a rule.
    pub(super) fn link_by_turn(&mut self, index: u32) {
        let Session {
            pool, turn, line, ..
        } = self.table[index as usize];
        let list = *self.of(pool, line);
        let is_last = list.last == NONE || self.table[list.last as usize].turn < turn;
        let mut next = if is_last { NONE } else { list.first };
        while let Some(found) = self.table.get(next as usize) {
            if found.turn > turn {
                break;
            }
            next = found.links[line.link()].after;
        }
        self.link(line, index, next);
    }

    /// Before `next`, or last.
    pub(super) fn link(&mut self, of: Of, index: u32, next: u32) {
        let (link, of) = (of.link(), of as usize);
        let pool = self.table[index as usize].pool as usize;
        let list = &mut self.lists[pool].lists[of];
        let before = match self.table.get(next as usize) {
            Some(found) => found.links[link].before,
            None => list.last,
        };
        self.table[index as usize].links[link] = Link {
            before,
            after: next,
        };
        match self.table.get_mut(before as usize) {
            Some(found) => found.links[link].after = index,
            None => list.first = index,
        }
        match self.table.get_mut(next as usize) {
            Some(found) => found.links[link].before = index,
            None => list.last = index,
        }
        list.length += 1;
    }

    pub(super) fn unlink(&mut self, of: Of, index: u32) {
        let (link, of) = (of.link(), of as usize);
        let pool = self.table[index as usize].pool as usize;
        let list = &mut self.lists[pool].lists[of];
        let Link { before, after } = self.table[index as usize].links[link];
        match self.table.get_mut(before as usize) {
            Some(found) => found.links[link].after = after,
            None => list.first = after,
        }
        match self.table.get_mut(after as usize) {
            Some(found) => found.links[link].before = before,
            None => list.last = before,
        }
        self.table[index as usize].links[link] = UNLINKED;
        list.length -= 1;
    }
}
