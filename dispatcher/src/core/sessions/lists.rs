//! The lists through the table of sessions: all sessions of a pool; its waiting sessions, in the
//! order in which they began to wait; and the waiting sessions of a tenant. A session is linked and
//! unlinked at constant cost, wherever in its list it is.
//!
//! A tenant's waiting sessions stand in one of two lines, which are served alternately. Sessions
//! that ask all the time stand in the busy line. New sessions, and those that were silent for
//! longer than others wait, stand in the quiet line. So quiet sessions wait only for one another,
//! and busy sessions lose at most every other turn. turns.rs decides which tenant is next.

use super::turns::{Share, Turns};
use super::{index_of, name, Session, SessionId, Sessions, Whereabouts};

/// No session.
pub const NONE: u32 = u32::MAX;

/// The neighbours of a session. While it is out of the list, those it had last.
#[derive(Clone, Copy)]
pub struct Link {
    before: u32,
    after: u32,
}

pub const UNLINKED: Link = Link {
    before: NONE,
    after: NONE,
};

/// The most lists that a session is in.
pub const LINKS: usize = 3;

/// A list through the table.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    length: usize,
}

impl Default for List {
    fn default() -> List {
        List {
            first: NONE,
            last: NONE,
            length: 0,
        }
    }
}

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All sessions of a pool.
    Pool,
    /// The waiting sessions of a pool.
    Waiting,
    /// The waiting sessions of a tenant that are quiet or new.
    Quiet,
    /// The tenant's other waiting sessions.
    Busy,
}

impl Of {
    /// Which of a session's links: it stands in at most one line.
    fn link(self) -> usize {
        match self {
            Of::Pool => 0,
            Of::Waiting => 1,
            Of::Quiet | Of::Busy => 2,
        }
    }
}

#[derive(Default)]
pub struct OfPool {
    all: List,
    waiting: List,
    pub(super) turns: Turns,
}

#[derive(Default)]
pub struct OfTenant {
    pub(super) pool: u32,
    quiet: List,
    busy: List,
    /// The busy line is next.
    busy_is_next: bool,
    members: usize,
    /// Members that have not been greeted.
    ungreeted: usize,
    pub(super) share: Share,
}

impl OfTenant {
    pub(super) fn waiting(&self) -> usize {
        self.quiet.length + self.busy.length
    }
}

impl Sessions {
    /// `number`: of a pool, or of a tenant.
    fn of(&self, number: u32, of: Of) -> &List {
        let number = number as usize;
        match of {
            Of::Pool => &self.of_pools[number].all,
            Of::Waiting => &self.of_pools[number].waiting,
            Of::Quiet => &self.of_tenants[number].quiet,
            Of::Busy => &self.of_tenants[number].busy,
        }
    }

    fn of_mut(&mut self, number: u32, of: Of) -> &mut List {
        let number = number as usize;
        match of {
            Of::Pool => &mut self.of_pools[number].all,
            Of::Waiting => &mut self.of_pools[number].waiting,
            Of::Quiet => &mut self.of_tenants[number].quiet,
            Of::Busy => &mut self.of_tenants[number].busy,
        }
    }

    /// The number of the pool or tenant whose list of this kind a session belongs to.
    fn list_owner(&self, of: Of, index: u32) -> u32 {
        let session = &self.table[index as usize];
        match of {
            Of::Pool | Of::Waiting => session.pool,
            Of::Quiet | Of::Busy => session.tenant,
        }
    }

    // ---- how many ----------------------------------------------------------

    /// Of a pool.
    pub fn waiting(&self, pool: u32) -> usize {
        self.of(pool, Of::Waiting).length
    }

    pub fn waiting_of_tenant(&self, tenant: u32) -> usize {
        self.of_tenants[tenant as usize].waiting()
    }

    /// Of a pool.
    pub fn members(&self, pool: u32) -> usize {
        self.of(pool, Of::Pool).length
    }

    pub fn members_of_tenant(&self, tenant: u32) -> usize {
        self.of_tenants[tenant as usize].members
    }

    /// The greeted sessions of a tenant.
    pub fn greeted_members(&self, tenant: u32) -> usize {
        let of_tenant = &self.of_tenants[tenant as usize];
        of_tenant.members - of_tenant.ungreeted
    }

    pub(super) fn count_ungreeted(&mut self, tenant: u32, was: Whereabouts, to: Whereabouts) {
        let ungreeted = &mut self.of_tenants[tenant as usize].ungreeted;
        *ungreeted += usize::from(to.is_ungreeted());
        *ungreeted -= usize::from(was.is_ungreeted());
    }

    // ---- which sessions ----------------------------------------------------

    fn first_of(&self, number: u32, of: Of) -> Option<SessionId> {
        self.in_slot(self.of(number, of).first)
    }

    /// The session of a tenant that is served next.
    pub fn first_of_tenant(&self, tenant: u32) -> Option<SessionId> {
        let (first, second) = match self.of_tenants[tenant as usize].busy_is_next {
            true => (Of::Busy, Of::Quiet),
            false => (Of::Quiet, Of::Busy),
        };
        self.first_of(tenant, first)
            .or_else(|| self.first_of(tenant, second))
    }

    /// The session of a pool that has waited longest.
    pub fn longest_waiting(&self, pool: u32) -> Option<SessionId> {
        self.first_of(pool, Of::Waiting)
    }

    /// The session of a tenant that has waited longest.
    pub fn longest_waiting_of(&self, tenant: u32) -> Option<SessionId> {
        let turn = |id: &SessionId| self.table[index_of(*id) as usize].turn;
        [Of::Quiet, Of::Busy]
            .into_iter()
            .filter_map(|of| self.first_of(tenant, of))
            .min_by_key(turn)
    }

    /// The waiting session of the same pool that began to wait next after this one.
    pub fn waiting_behind(&self, session: SessionId) -> Option<SessionId> {
        let found = self.get(session)?;
        self.in_slot(found.links[Of::Waiting.link()].after)
    }

    /// All waiting sessions of a pool, the longest wait first.
    pub fn fifo(&self, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.list(Of::Waiting, pool)
    }

    /// A session of this line leaves, or has come back because its hand-over failed. Moves the turn
    /// among the tenant's two lines, and among tenants.
    pub(super) fn takes_turns(&mut self, tenant: u32, line: Of, has_gone: bool) {
        self.of_tenants[tenant as usize].busy_is_next = (line == Of::Busy) != has_gone;
        self.charge(tenant, has_gone);
    }

    /// All sessions of a pool.
    #[cfg(test)]
    pub fn of_pool(&self, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.list(Of::Pool, pool)
    }

    /// Moves the first of a pool's sessions to the end. A scan that goes through them in slices
    /// takes as many as there were.
    pub fn rotate(&mut self, pool: u32) -> Option<SessionId> {
        let id = self.first_of(pool, Of::Pool)?;
        self.unlink(Of::Pool, index_of(id));
        self.link(Of::Pool, index_of(id), NONE);
        Some(id)
    }

    pub(in crate::core) fn list(
        &self,
        of: Of,
        number: u32,
    ) -> impl Iterator<Item = SessionId> + '_ {
        let mut next = self.of(number, of).first;
        std::iter::from_fn(move || {
            let found = self.table.get(next as usize)?;
            let id = name(found.generation, next);
            next = found.links[of.link()].after;
            Some(id)
        })
    }

    // ---- coming and going --------------------------------------------------

    pub(super) fn comes_in(&mut self, index: u32) {
        self.link(Of::Pool, index, NONE);
        let tenant = self.table[index as usize].tenant;
        self.of_tenants[tenant as usize].members += 1;
    }

    pub(super) fn goes_out(&mut self, index: u32) {
        self.unlink(Of::Pool, index);
        let tenant = self.table[index as usize].tenant;
        self.of_tenants[tenant as usize].members -= 1;
    }

    pub(super) fn waits_by_turn(&mut self, index: u32) {
        let Session { line, tenant, .. } = self.table[index as usize];
        self.link_by_turn(Of::Waiting, index);
        self.link_by_turn(line, index);
        self.has_other_waiting(tenant);
    }

    pub(super) fn waits_no_more(&mut self, index: u32) {
        let Session { line, tenant, .. } = self.table[index as usize];
        self.unlink(Of::Waiting, index);
        self.unlink(line, index);
        self.has_other_waiting(tenant);
    }

    /// Links a session into its list by turn: usually at the end, or where it was.
    fn link_by_turn(&mut self, of: Of, index: u32) {
        let turn = self.table[index as usize].turn;
        let list = *self.of(self.list_owner(of, index), of);
        let is_last = list.last == NONE || self.table[list.last as usize].turn < turn;
        if is_last {
            return self.link(of, index, NONE);
        }
        let was_before = self.table[index as usize].links[of.link()].after;
        let mut next = match self.is_next(of, index, was_before) {
            true => was_before,
            false => list.first,
        };
        while let Some(found) = self.table.get(next as usize) {
            if found.turn > turn {
                break;
            }
            next = found.links[of.link()].after;
        }
        self.link(of, index, next);
    }

    /// Is `next` in this list of the session, and the first session behind it?
    fn is_next(&self, of: Of, index: u32, next: u32) -> bool {
        let Some(found) = self.table.get(next as usize) else {
            return false;
        };
        let turn = self.table[index as usize].turn;
        let is_in_line = of == Of::Waiting || found.line == of;
        let is_in_list = found.is_live
            && matches!(found.whereabouts, Whereabouts::Waiting(_))
            && is_in_line
            && self.list_owner(of, next) == self.list_owner(of, index);
        let before = self.table.get(found.links[of.link()].before as usize);
        is_in_list && found.turn > turn && before.is_none_or(|before| before.turn < turn)
    }

    /// Links a session before `next`, or at the end.
    fn link(&mut self, of: Of, index: u32, next: u32) {
        let (link, owner) = (of.link(), self.list_owner(of, index));
        let before = match self.table.get(next as usize) {
            Some(found) => found.links[link].before,
            None => self.of(owner, of).last,
        };
        self.table[index as usize].links[link] = Link {
            before,
            after: next,
        };
        match self.table.get_mut(before as usize) {
            Some(found) => found.links[link].after = index,
            None => self.of_mut(owner, of).first = index,
        }
        match self.table.get_mut(next as usize) {
            Some(found) => found.links[link].before = index,
            None => self.of_mut(owner, of).last = index,
        }
        self.of_mut(owner, of).length += 1;
    }

    fn unlink(&mut self, of: Of, index: u32) {
        let (link, owner) = (of.link(), self.list_owner(of, index));
        let Link { before, after } = self.table[index as usize].links[link];
        match self.table.get_mut(before as usize) {
            Some(found) => found.links[link].after = after,
            None => self.of_mut(owner, of).first = after,
        }
        match self.table.get_mut(after as usize) {
            Some(found) => found.links[link].before = before,
            None => self.of_mut(owner, of).last = before,
        }
        self.of_mut(owner, of).length -= 1;
    }
}
